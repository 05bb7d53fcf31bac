// SPDX-License-Identifier: Apache-2.0

//! The interoperability program of rabbitmq-stream-client; ../README.md has the words of its command line and what it
//! prints.

use std::collections::HashMap;
use std::error::Error;
use std::future::{ready, Ready};

use futures::{Stream, StreamExt};
use rabbitmq_stream_client::error::{ConsumerDeliveryError, ProducerPublishError};
use rabbitmq_stream_client::types::{
    Delivery, HashRoutingMurmurStrategy, Message, OffsetSpecification, RoutingStrategy, SimpleValue,
};
use rabbitmq_stream_client::{ConfirmationStatus, Environment, FilterConfiguration, TlsConfiguration};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout, Duration};

const PACE: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_millis(200);

type Outcome = Result<(), Box<dyn Error>>;

struct Given(HashMap<String, String>);

impl Given {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
    fn text(&self, name: &str, otherwise: &str) -> String {
        self.get(name).unwrap_or(otherwise).to_string()
    }
    fn number(&self, name: &str) -> u64 {
        self.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
    fn stream(&self) -> String {
        self.text("stream", "")
    }
}

fn say(event: &str, fields: &[(&str, String)]) {
    let more: String = fields.iter().map(|(name, value)| format!(", \"{name}\": {value}")).collect();
    println!("{{\"event\": \"{event}\"{more}}}");
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace(['"', '\\', '\n'], "'"))
}

async fn open(given: &Given) -> Result<Environment, Box<dyn Error>> {
    let mut builder = Environment::builder()
        .host(&given.text("host", ""))
        .port(given.number("port") as u16)
        .username(&given.text("user", "guest"))
        .password(&given.text("password", "guest"))
        .virtual_host(&given.text("vhost", "/"));
    if let Some(authority) = given.get("tls") {
        builder = builder.tls(TlsConfiguration::builder().add_root_certificates(authority).build()?);
    }
    Ok(builder.build().await?)
}

fn message(number: u64, with_id: bool) -> Message {
    let mut builder = Message::builder();
    if with_id {
        builder = builder.publishing_id(number + 1);
    }
    let properties = builder.application_properties().insert("client", "rust");
    properties.message_builder().body(format!("rust-{number}")).build()
}

/// What a producer calls with each answer, for `wait`.
fn teller(
    told: mpsc::UnboundedSender<bool>,
) -> impl Fn(Result<ConfirmationStatus, ProducerPublishError>) -> Ready<()> + Clone + Send + Sync + 'static {
    move |status| {
        let _ = told.send(status.is_ok_and(|status| status.confirmed()));
        ready(())
    }
}

async fn publish(given: &Given, environment: Environment) -> Outcome {
    let (count, first) = (given.number("count"), given.number("first"));
    let (told, mut answers) = mpsc::unbounded_channel();
    let reference = given.get("reference");
    let messages: Vec<Message> = (first..first + count).map(|number| message(number, reference.is_some())).collect();
    if given.get("compression").is_some() {
        return Err("the client has no sub-entry batches".into());
    }
    if given.get("super").is_some() {
        let key: &'static (dyn Fn(&Message) -> String + Send + Sync) =
            &|message| String::from_utf8_lossy(message.data().unwrap_or_default()).into_owned();
        let strategy = RoutingStrategy::HashRoutingStrategy(HashRoutingMurmurStrategy { routing_extractor: key });
        let mut producer = environment.super_stream_producer(strategy).build(&given.stream()).await?;
        for each in messages {
            producer.send(each, teller(told.clone())).await.map_err(|failed| format!("{failed:?}"))?;
        }
        wait(&mut answers, count).await?;
        producer.close().await?;
    } else if let Some(reference) = reference {
        let mut producer = environment.producer().name(reference).build(&given.stream()).await?;
        if given.get("twice").is_some() {
            let twice = messages.iter().flat_map(|each| [each.clone(), each.clone()]).collect();
            let confirmed = producer.batch_send_with_confirm(twice).await.map_err(|failed| format!("{failed:?}"))?;
            say("confirmed", &[("count", confirmed.len().to_string())]);
            let _ = timeout(PAUSE, producer.close()).await; // to drop it open would block for good
            return Ok(());
        }
        producer.batch_send(messages, teller(told)).await?;
        wait(&mut answers, count).await?;
        producer.close().await?;
    } else {
        let mut builder = environment.producer();
        if let Some(filter) = given.get("filter") {
            let filter = filter.to_string();
            builder = builder.filter_value_extractor(move |_| filter.clone());
        }
        let producer = builder.build(&given.stream()).await?;
        producer.batch_send(messages, teller(told)).await?;
        wait(&mut answers, count).await?;
        producer.close().await?;
    }
    say("confirmed", &[("count", count.to_string())]);
    Ok(())
}

async fn wait(answers: &mut mpsc::UnboundedReceiver<bool>, count: u64) -> Outcome {
    for _ in 0..count {
        if answers.recv().await != Some(true) {
            return Err("refused".into());
        }
    }
    Ok(())
}

async fn starting_point(given: &Given, environment: &Environment, last: Option<u64>) -> OffsetSpecification {
    let from = given.text("from", "first");
    let (name, value) = from.split_once(':').unwrap_or((&from, "0"));
    match (last, name) {
        (Some(last), _) => OffsetSpecification::Offset(last + 1),
        (_, "last") => OffsetSpecification::Last,
        (_, "next") => OffsetSpecification::Next,
        (_, "offset") => OffsetSpecification::Offset(value.parse().unwrap_or(0)),
        (_, "timestamp") => OffsetSpecification::Timestamp(value.parse().unwrap_or(0)),
        (_, "stored") => match stored(given, environment).await {
            Ok(offset) => OffsetSpecification::Offset(offset + 1),
            Err(_) => OffsetSpecification::First,
        },
        _ => OffsetSpecification::First,
    }
}

/// Only a consumer can ask for its stored offset, so there is one for the question.
async fn stored(given: &Given, environment: &Environment) -> Result<u64, Box<dyn Error>> {
    let builder = environment.consumer().name(&given.text("reference", "")).offset(OffsetSpecification::Next);
    let consumer = builder.build(&given.stream()).await?;
    let offset = consumer.query_offset().await;
    consumer.handle().close().await?;
    Ok(offset?)
}

/// How a subscription ended: with all messages wanted, or its connection.
async fn read<S>(given: &Given, deliveries: &mut S, received: &mut u64, last: &mut Option<u64>) -> bool
where
    S: Stream<Item = Result<Delivery, ConsumerDeliveryError>> + Unpin,
{
    while let Some(Ok(delivery)) = deliveries.next().await {
        *received += 1;
        *last = Some(delivery.offset());
        let message = delivery.message();
        let client = match message.application_properties().and_then(|all| all.get("client")) {
            Some(SimpleValue::String(text)) => quoted(text),
            _ => "null".to_string(),
        };
        let body = quoted(&String::from_utf8_lossy(message.data().unwrap_or_default()));
        let offset = ("offset", delivery.offset().to_string());
        say("message", &[("body", body), ("client", client), offset, ("stream", quoted(delivery.stream()))]);
        if *received == given.number("count") {
            return true;
        }
    }
    false
}

async fn consume(given: &Given, environment: Environment) -> Outcome {
    let (mut received, mut last) = (0, None);
    let filter = given.get("filter").map(|value| FilterConfiguration::new(vec![value.to_string()], false));
    loop {
        let offset = starting_point(given, &environment, last).await;
        if given.get("super").is_some() {
            let mut builder = environment.super_stream_consumer().offset(offset);
            let mut consumer = builder.build(&given.stream()).await?;
            say("subscribed", &[]);
            read(given, &mut consumer, &mut received, &mut last).await;
            return Ok(());
        }
        let mut builder = environment.consumer().offset(offset).filter_input(filter.clone());
        if let Some(reference) = given.get("reference") {
            builder = builder.name(reference);
        }
        if given.get("single").is_some() {
            builder = builder.enable_single_active_consumer(true).consumer_update(|active, _| async move {
                say("active", &[("active", (active == 1).to_string())]);
                OffsetSpecification::First
            });
        }
        let mut consumer = builder.build(&given.stream()).await?;
        say("subscribed", &[]);
        if read(given, &mut consumer, &mut received, &mut last).await {
            if let (Some(_), Some(last)) = (given.get("store"), last) {
                consumer.store_offset(last).await?;
            }
            consumer.handle().close().await?;
            return Ok(());
        }
        say("closed", &[]);
    }
}

/// The client does not connect again by itself: whoever finds a connection gone makes another.
async fn through(given: &Given, environment: Environment) -> Outcome {
    tokio::join!(publish_through(given, &environment), consume_through(given, &environment));
    Ok(())
}

async fn publish_through(given: &Given, environment: &Environment) {
    let mut number = 0;
    loop {
        if let Ok(producer) = environment.producer().build(&given.stream()).await {
            while let Ok(true) = producer.send_with_confirm(message(number, false)).await.map(|sent| sent.confirmed()) {
                say("confirmed", &[("number", number.to_string())]);
                number += 1;
                sleep(PACE).await;
            }
            number += 1; // this one may be stored or not
            let _ = timeout(PAUSE, producer.close()).await; // to drop it open would block for good
        }
        sleep(PAUSE).await;
    }
}

async fn consume_through(given: &Given, environment: &Environment) {
    let (mut received, mut last) = (0, None);
    loop {
        let offset = last.map_or(OffsetSpecification::First, |last| OffsetSpecification::Offset(last + 1));
        if let Ok(mut consumer) = environment.consumer().offset(offset).build(&given.stream()).await {
            say("subscribed", &[]);
            read(given, &mut consumer, &mut received, &mut last).await;
            say("closed", &[]);
        }
        sleep(PAUSE).await;
    }
}

async fn manage(given: &Given, environment: Environment, command: &str) -> Outcome {
    let stream = given.stream();
    match (command, given.get("partitions"), given.get("super")) {
        ("create", None, _) => environment.stream_creator().create(&stream).await?,
        ("create", Some(_), _) => {
            let count = given.number("partitions") as usize;
            environment.stream_creator().create_super_stream(&stream, count, None).await?
        }
        (_, _, None) => environment.delete_stream(&stream).await?,
        _ => environment.delete_super_stream(&stream).await?,
    }
    say(&format!("{command}d"), &[]);
    Ok(())
}

async fn run(command: &str, given: Given) -> Outcome {
    let environment = open(&given).await?;
    match command {
        "publish" => publish(&given, environment).await,
        "consume" => consume(&given, environment).await,
        "through" => through(&given, environment).await,
        _ => manage(&given, environment, command).await,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let pairs = words[2..].chunks_exact(2).map(|pair| (pair[0].replacen("--", "", 1), pair[1].clone()));
    if let Err(failed) = run(&words[1], Given(pairs.collect())).await {
        say("error", &[("text", quoted(&failed.to_string()))]);
        std::process::exit(1);
    }
}
