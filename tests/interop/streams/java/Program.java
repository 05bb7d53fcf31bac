// SPDX-License-Identifier: Apache-2.0
// The interoperability program of com.rabbitmq:stream-client; ../README.md has the words of its command line and what
// it prints.

import com.rabbitmq.stream.BackOffDelayPolicy;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.EnvironmentBuilder;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.Resource;
import com.rabbitmq.stream.compression.Compression;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

public class Program {
  static final Map<String, String> given = new HashMap<>();
  static String stream;
  static int count;
  static final long PACE_MS = 2;

  static void say(String event, Object... fields) {
    StringBuilder line = new StringBuilder("{\"event\": \"" + event + "\"");
    for (int i = 0; i < fields.length; i += 2) {
      Object value = fields[i + 1];
      boolean plain = value == null || value instanceof Number || value instanceof Boolean;
      String text = plain ? "" + value : "\"" + value.toString().replaceAll("[\\\\\"\n]", "'") + "\"";
      line.append(", \"").append(fields[i]).append("\": ").append(text);
    }
    System.out.println(line.append("}"));
  }

  static Environment open() throws Exception {
    EnvironmentBuilder builder =
        Environment.builder()
            .host(given.get("host"))
            .port(Integer.parseInt(given.get("port")))
            .username(given.getOrDefault("user", "guest"))
            .password(given.getOrDefault("password", "guest"))
            .virtualHost(given.getOrDefault("vhost", "/"))
            .recoveryBackOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(200)))
            .topologyUpdateBackOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(200)));
    if (given.containsKey("tls"))
      builder =
          builder
              .tls()
              .sslContext(SslContextBuilder.forClient().trustManager(new File(given.get("tls"))).build())
              .environmentBuilder();
    return builder.build();
  }

  static void publish() throws Exception {
    int first = Integer.parseInt(given.getOrDefault("first", "0"));
    String reference = given.get("reference");
    String filter = given.get("filter");
    try (Environment environment = open()) {
      ProducerBuilder builder = environment.producerBuilder();
      if (given.containsKey("super"))
        builder =
            builder
                .superStream(stream)
                .routing(message -> new String(message.getBodyAsBinary(), StandardCharsets.UTF_8))
                .producerBuilder();
      else builder = builder.stream(stream);
      if (reference != null) builder = builder.name(reference);
      if (filter != null) builder = builder.filterValue(message -> filter);
      if (given.containsKey("compression"))
        builder =
            builder
                .subEntrySize(count)
                .compression(Compression.valueOf(given.get("compression").toUpperCase()));
      CountDownLatch confirmed = new CountDownLatch(count);
      Producer producer = builder.build();
      for (int number = first; number < first + count; number++) {
        var message = producer.messageBuilder();
        if (reference != null) message.publishingId(number + 1);
        message.applicationProperties().entry("client", "java");
        message.addData(("java-" + number).getBytes(StandardCharsets.UTF_8));
        producer.send(
            message.build(),
            status -> {
              if (status.isConfirmed()) confirmed.countDown();
              else say("error", "text", "refused", "code", status.getCode());
            });
      }
      confirmed.await();
      say("confirmed", "count", count);
      producer.close();
    }
  }

  static OffsetSpecification startingPoint() {
    String[] at = given.get("from").split(":");
    switch (at[0]) {
      case "last":
        return OffsetSpecification.last();
      case "next":
        return OffsetSpecification.next();
      case "offset":
        return OffsetSpecification.offset(Long.parseLong(at[1]));
      case "timestamp":
        return OffsetSpecification.timestamp(Long.parseLong(at[1]));
      default: // "stored" too: the client itself starts after what is stored under the consumer's name
        return OffsetSpecification.first();
    }
  }

  static void consume() throws Exception {
    CompletableFuture<String> ended = new CompletableFuture<>();
    AtomicInteger received = new AtomicInteger();
    try (Environment environment = open()) {
      ConsumerBuilder builder = environment.consumerBuilder().offset(startingPoint());
      builder = given.containsKey("super") ? builder.superStream(stream) : builder.stream(stream);
      if (given.containsKey("reference"))
        builder = builder.name(given.get("reference")).manualTrackingStrategy().builder();
      else builder = builder.noTrackingStrategy();
      if (given.containsKey("single"))
        builder =
            builder
                .singleActiveConsumer()
                .consumerUpdateListener(
                    context -> {
                      say("active", "active", context.isActive());
                      return OffsetSpecification.first();
                    });
      if (given.containsKey("filter"))
        builder = builder.filter().values(given.get("filter")).postFilter(message -> true).builder();
      Consumer consumer =
          builder
              .listeners(
                  context -> {
                    if (context.currentState() == Resource.State.RECOVERING) say("closed");
                    if (context.currentState() == Resource.State.CLOSED) ended.complete("gone");
                  })
              .messageHandler(
                  (context, message) -> {
                    int number = received.incrementAndGet();
                    if (count > 0 && number > count) return;
                    Map<String, Object> properties = message.getApplicationProperties();
                    say(
                        "message",
                        "body",
                        new String(message.getBodyAsBinary(), StandardCharsets.UTF_8),
                        "client",
                        properties == null ? null : properties.get("client"),
                        "offset",
                        context.offset(),
                        "stream",
                        context.stream());
                    if (number == count) {
                      if (given.containsKey("store")) context.storeOffset();
                      ended.complete("enough");
                    }
                  })
              .build();
      say("subscribed");
      if (ended.get().equals("gone")) {
        say("gone");
        return;
      }
      consumer.close();
    }
  }

  /** The client recovers by itself, and sends again what was not confirmed. */
  static void through() throws Exception {
    try (Environment environment = open()) {
      environment
          .consumerBuilder()
          .stream(stream)
          .offset(OffsetSpecification.first())
          .noTrackingStrategy()
          .messageHandler(
              (context, message) ->
                  say(
                      "message",
                      "body",
                      new String(message.getBodyAsBinary(), StandardCharsets.UTF_8),
                      "offset",
                      context.offset()))
          .build();
      Producer producer =
          environment.producerBuilder().stream(stream).maxUnconfirmedMessages(50).enqueueTimeout(Duration.ZERO).build();
      say("subscribed");
      for (int number = 0; ; number++) {
        int sent = number;
        byte[] body = ("java-" + number).getBytes(StandardCharsets.UTF_8);
        producer.send(
            producer.messageBuilder().addData(body).build(),
            status -> {
              if (status.isConfirmed()) say("confirmed", "number", sent);
            });
        Thread.sleep(PACE_MS);
      }
    }
  }

  static void manage(String command) throws Exception {
    try (Environment environment = open()) {
      if (command.equals("delete")) {
        if (given.containsKey("super")) environment.deleteSuperStream(stream);
        else environment.deleteStream(stream);
      } else if (given.containsKey("partitions"))
        environment
            .streamCreator()
            .name(stream)
            .superStream()
            .partitions(Integer.parseInt(given.get("partitions")))
            .creator()
            .create();
      else environment.streamCreator().stream(stream).create();
      say(command + "d");
    }
  }

  public static void main(String[] words) {
    for (int i = 1; i < words.length; i += 2) given.put(words[i].substring(2), words[i + 1]);
    stream = given.get("stream");
    count = Integer.parseInt(given.getOrDefault("count", "0"));
    try {
      switch (words[0]) {
        case "publish":
          publish();
          break;
        case "consume":
          consume();
          break;
        case "through":
          through();
          break;
        default:
          manage(words[0]);
      }
      System.exit(0);
    } catch (Exception failed) {
      say("error", "text", failed.toString());
      System.exit(1);
    }
  }
}
