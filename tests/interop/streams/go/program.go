// SPDX-License-Identifier: Apache-2.0

// The interoperability program of rabbitmq-stream-go-client; ../README.md has the words of its command line and what
// it prints.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/ha"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

var (
	given  = map[string]string{}
	output sync.Mutex
)

const pace = 2 * time.Millisecond

// attemptsMax is how often a consumer tries to come back, a pace apart.
const attemptsMax = 5000

type fields map[string]any

func say(event string, more fields) {
	line := fields{"event": event}
	for name, value := range more {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func has(name string) bool { return given[name] != "" }

func number(name string) int {
	value, _ := strconv.Atoi(given[name])
	return value
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func open() (*stream.Environment, error) {
	options := stream.NewEnvironmentOptions().
		SetHost(given["host"]).
		SetPort(number("port")).
		SetUser(or(given["user"], "guest")).
		SetPassword(or(given["password"], "guest")).
		SetVHost(or(given["vhost"], "/"))
	if has("tls") {
		certificate, err := os.ReadFile(given["tls"])
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(certificate)
		options.IsTLS(true).SetTLSConfig(&tls.Config{RootCAs: pool, ServerName: given["host"]})
	}
	return stream.NewEnvironment(options)
}

// count waits for so many confirms, each a status with its messages.
func count(statuses []*stream.ConfirmationStatus, left *int) {
	for _, status := range statuses {
		if !status.IsConfirmed() {
			say("error", fields{"text": fmt.Sprint(status.GetError()), "code": status.GetErrorCode()})
		}
		*left--
		*left -= len(status.LinkedMessages())
	}
}

func publish(env *stream.Environment) error {
	left := number("count")
	var send func(message.StreamMessage) error
	var wait func()
	var end func() error
	var filter *stream.ProducerFilter
	if has("filter") {
		filter = stream.NewProducerFilter(func(message.StreamMessage) string { return given["filter"] })
	}
	if has("super") {
		key := func(message message.StreamMessage) string { return string(message.GetData()[0]) }
		options := stream.NewSuperStreamProducerOptions(stream.NewHashRoutingStrategy(key)).SetFilter(filter)
		producer, err := env.NewSuperStreamProducer(given["stream"], options)
		if err != nil {
			return err
		}
		confirms := producer.NotifyPublishConfirmation(left)
		send, end = producer.Send, producer.Close
		wait = func() { count((<-confirms).ConfirmationStatus, &left) }
	} else {
		options := stream.NewProducerOptions().SetFilter(filter)
		if has("reference") {
			options.SetProducerName(given["reference"])
		}
		if has("compression") {
			options.SetSubEntrySize(left)
			if given["compression"] == "gzip" {
				options.SetCompression(stream.Compression{}.Gzip())
			}
		}
		producer, err := env.NewProducer(given["stream"], options)
		if err != nil {
			return err
		}
		confirms := producer.NotifyPublishConfirmation()
		send, end = producer.Send, producer.Close
		wait = func() { count(<-confirms, &left) }
		if has("compression") { // one entry needs one call
			var batch []message.StreamMessage
			send = func(message message.StreamMessage) error {
				if batch = append(batch, message); len(batch) == number("count") {
					return producer.BatchSend(batch)
				}
				return nil
			}
		}
	}
	for i := number("first"); i < number("first")+number("count"); i++ {
		message := amqp.NewMessage([]byte(fmt.Sprintf("go-%d", i)))
		message.ApplicationProperties = map[string]any{"client": "go"}
		if has("reference") {
			message.SetPublishingId(int64(i + 1))
		}
		if err := send(message); err != nil {
			return err
		}
	}
	for left > 0 {
		wait()
	}
	say("confirmed", fields{"count": number("count")})
	return end()
}

func startingPoint(env *stream.Environment, last int64) stream.OffsetSpecification {
	at := stream.OffsetSpecification{}
	if last >= 0 {
		return at.Offset(last + 1)
	}
	name, text, _ := strings.Cut(given["from"], ":")
	value, _ := strconv.ParseInt(text, 10, 64)
	switch name {
	case "last":
		return at.Last()
	case "next":
		return at.Next()
	case "offset":
		return at.Offset(value)
	case "timestamp":
		return at.Timestamp(value)
	case "stored":
		if stored, err := env.QueryOffset(given["reference"], given["stream"]); err == nil {
			return at.Offset(stored + 1)
		}
	}
	return at.First()
}

func consume(env *stream.Environment) error {
	received, last := 0, int64(-1)
	enough := make(chan bool, 1)
	var one sync.Mutex // the partitions of a super stream call from goroutines of their own
	onMessage := func(context stream.ConsumerContext, message *amqp.Message) {
		one.Lock()
		defer one.Unlock()
		if number("count") > 0 && received == number("count") {
			return
		}
		received++
		last = context.Consumer.GetOffset()
		say("message", fields{"body": string(message.GetData()), "client": message.ApplicationProperties["client"],
			"offset": last, "stream": context.Consumer.GetStreamName()})
		if received == number("count") {
			if has("store") {
				_ = context.Consumer.StoreCustomOffset(last)
			}
			enough <- true
		}
	}
	for attempts := 0; ; attempts++ {
		if has("super") {
			options := stream.NewSuperStreamConsumerOptions().SetOffset(startingPoint(env, last))
			consumer, err := env.NewSuperStreamConsumer(given["stream"], onMessage, options)
			if err != nil {
				return err
			}
			say("subscribed", nil)
			<-enough
			return consumer.Close()
		}
		options := stream.NewConsumerOptions().SetOffset(startingPoint(env, last)).SetConsumerName(given["reference"])
		if has("filter") {
			all := func(*amqp.Message) bool { return true }
			options.SetFilter(stream.NewConsumerFilter([]string{given["filter"]}, false, all))
		}
		if has("single") {
			options.SetSingleActiveConsumer(stream.NewSingleActiveConsumer(
				func(_ string, active bool) stream.OffsetSpecification {
					say("active", fields{"active": active})
					return stream.OffsetSpecification{}.First()
				}))
		}
		consumer, err := env.NewConsumer(given["stream"], onMessage, options)
		if err != nil {
			if attempts == 0 || attempts > attemptsMax {
				return err
			}
			time.Sleep(pace) // the environment's own connection has been closed too, and is on its way back
			continue
		}
		attempts = 0
		closed := consumer.NotifyClose()
		say("subscribed", nil)
		select {
		case <-enough:
			return consumer.Close()
		case event := <-closed:
			if event.Reason == stream.MetaDataUpdate {
				say("gone", nil)
				return nil
			}
			say("closed", nil)
		}
	}
}

// through uses the part of the library that connects again by itself.
func through(env *stream.Environment) error {
	confirmed := func(statuses []*stream.ConfirmationStatus) {
		for _, status := range statuses {
			if status.IsConfirmed() {
				body := string(status.GetMessage().GetData()[0])
				number, _ := strconv.Atoi(strings.TrimPrefix(body, "go-"))
				say("confirmed", fields{"number": number})
			}
		}
	}
	onMessage := func(context stream.ConsumerContext, message *amqp.Message) {
		say("message", fields{"body": string(message.GetData()), "offset": context.Consumer.GetOffset()})
	}
	options := stream.NewConsumerOptions().SetOffset(stream.OffsetSpecification{}.First())
	if _, err := ha.NewReliableConsumer(env, given["stream"], options, onMessage); err != nil {
		return err
	}
	producer, err := ha.NewReliableProducer(env, given["stream"], stream.NewProducerOptions(), confirmed)
	if err != nil {
		return err
	}
	say("subscribed", nil)
	for i := 0; ; i++ {
		if err := producer.Send(amqp.NewMessage([]byte(fmt.Sprintf("go-%d", i)))); err != nil {
			return err
		}
		time.Sleep(pace)
	}
}

func manage(env *stream.Environment, command string) error {
	var err error
	switch {
	case command == "create" && has("partitions"):
		err = env.DeclareSuperStream(given["stream"], stream.NewPartitionsOptions(number("partitions")))
	case command == "create":
		err = env.DeclareStream(given["stream"], &stream.StreamOptions{})
	case has("super"):
		err = env.DeleteSuperStream(given["stream"])
	default:
		err = env.DeleteStream(given["stream"])
	}
	if err == nil {
		say(command+"d", nil)
	}
	return err
}

func main() {
	for i := 2; i+1 < len(os.Args); i += 2 {
		given[strings.TrimPrefix(os.Args[i], "--")] = os.Args[i+1]
	}
	env, err := open()
	if err == nil {
		switch os.Args[1] {
		case "publish":
			err = publish(env)
		case "consume":
			err = consume(env)
		case "through":
			err = through(env)
		default:
			err = manage(env, os.Args[1])
		}
	}
	if err != nil {
		say("error", fields{"text": err.Error()})
		os.Exit(1)
	}
	_ = env.Close()
}
