# SPDX-License-Identifier: Apache-2.0
"""A Kafka broker and Spark's connector to it, of jars that Maven fetches from its registry and keeps.

One node in KRaft mode on the loopback, with the options of the server.properties that Kafka comes with and the heap and
collector of its start scripts. It answers a producer (acks=all) once the page cache has the records and syncs when the
kernel likes: the same promise as our durability `os`.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.servers import Server, free_ports
from vibemq.errors import SetupError, VibeMQError
from vibemq.spark.session import ensure_java

JARS = Path(__file__).parent / "jars"
MAVEN_TIMEOUT_S = 600  # the first time, 55 MB are fetched
TOOL_TIMEOUT_S = 90
# kafka-server-start.sh and kafka-run-class.sh
JVM = "-Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
JVM += "-XX:+ExplicitGCInvokesConcurrent -XX:MaxInlineLevel=15 -Djava.awt.headless=true"
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
TOOL_JVM = "-Xmx256M -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CLUSTER = "A" * 22  # an id in base64
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
"""


@functools.cache
def jars(part: str) -> tuple[str, ...]:
    """The files of `broker` or `connector`. SetupError says why they cannot be had."""
    if shutil.which("mvn") is None:
        raise SetupError("mvn is not installed", hint="Debian: apt-get install maven")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "classpath"
        command = ["mvn", "-q", "-B", "-f", str(JARS / part / "pom.xml"), "dependency:build-classpath"]
        command += [f"-Dmdep.outputFile={found}", *(["-DexcludeTransitive=true"] if part == "connector" else [])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAVEN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SetupError(f"the jars of Kafka's {part}: mvn was not done within {MAVEN_TIMEOUT_S} s") from None
        if done.returncode or not found.exists():
            why = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr)
            raise SetupError(f"the jars of Kafka's {part} cannot be had: {why[:400]}")
        return tuple(found.read_text().split(":"))


class Kafka(Server):
    name = "kafka"
    protocol = "kafka"
    durability = "os (acks=all, no sync)"

    @classmethod
    def missing(cls) -> str:
        try:
            ensure_java()
            jars("broker")
            jars("connector")
        except SetupError as failed:
            return str(failed)
        return ""

    def launch(self) -> None:
        self.classpath = ":".join(jars("broker"))
        self.port, controller = free_ports(2)
        properties = self.folder / "server.properties"
        properties.write_text(PROPERTIES.format(port=self.port, controller=controller, data=self.folder / "data"))
        self.run("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER, "-c", str(properties))
        self.spawn(self.java(JVM, "kafka.Kafka", str(properties)))
        self.await_answer()

    def java(self, options: str, *arguments: str) -> list[str]:
        return [str(ensure_java() / "bin" / "java"), *options.split(), QUIET, "-cp", self.classpath, *arguments]

    def run(self, *arguments: str) -> str:
        """One of Kafka's own tools. What it prints; VibeMQError with the end of it when it fails."""
        try:
            command = self.java(TOOL_JVM, *arguments)
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise VibeMQError(f"{arguments[0]}: not done within {TOOL_TIMEOUT_S} s") from None
        if done.returncode:
            raise VibeMQError(f"{arguments[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
        return done.stdout

    def topics(self, *arguments: str) -> str:
        return self.run("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, *arguments)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def greet(self) -> None:
        """The tool itself waits for a broker that is not there yet."""
        self.topics("--list")

    def create(self, topic: str, partitions: int) -> None:
        self.topics("--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", "1")

    def delete(self, topic: str) -> None:
        self.topics("--delete", "--topic", topic)

    def publish(self, topic: str, rate: int, seconds: float, size: int) -> None:
        """Kafka's own generator: so many records a second, each with the time of its making."""
        arguments = {
            "--bootstrap-server": self.address,
            "--topic": topic,
            "--num-records": str(int(rate * seconds)),
            "--throughput": str(rate),
            "--record-size": str(size),
        }
        words = [word for pair in arguments.items() for word in pair]
        self.run("org.apache.kafka.tools.ProducerPerformance", *words)

    def version(self) -> str:
        return next((Path(jar).stem.rpartition("-")[2] for jar in jars("broker") if "kafka_2.13" in jar), "")
