// go-nsq by remote control; ../README.md has the protocol.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"
)

type tlsFiles struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

type options struct {
	TLS       *tlsFiles `json:"tls"`
	Snappy    bool      `json:"snappy"`
	Deflate   int       `json:"deflate"`
	Auth      string    `json:"auth"`
	TimeoutMs int       `json:"timeout_ms"`
}

type request struct {
	Do        string   `json:"do"`
	Address   string   `json:"address"`
	Addresses []string `json:"addresses"`
	Lookups   []string `json:"lookups"`
	Topic     string   `json:"topic"`
	Channel   string   `json:"channel"`
	InFlight  int      `json:"in_flight"`
	Bodies    [][]byte `json:"bodies"`
	DelayMs   int      `json:"delay_ms"`
	ID        string   `json:"id"`
	Finishes  bool     `json:"finishes"`
	Options   options  `json:"options"`
}

func config(o options) (*nsq.Config, error) {
	c := nsq.NewConfig()
	c.LookupdPollInterval = 500 * time.Millisecond
	c.LookupdPollJitter = 0
	c.MaxAttempts = 0
	c.MaxBackoffDuration = 0
	c.MsgTimeout = time.Duration(o.TimeoutMs) * time.Millisecond
	c.AuthSecret = o.Auth
	c.Snappy = o.Snappy
	if o.Deflate > 0 {
		c.Deflate, c.DeflateLevel = true, o.Deflate
	}
	if o.TLS != nil {
		ca, err := os.ReadFile(o.TLS.CA)
		if err != nil {
			return nil, err
		}
		pair, err := tls.LoadX509KeyPair(o.TLS.Cert, o.TLS.Key)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		c.TlsV1 = true
		c.TlsConfig = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
	}
	return c, nil
}

// Lines to the test, one at a time.
var (
	out  = json.NewEncoder(os.Stdout)
	lock sync.Mutex
)

func tell(line any) {
	lock.Lock()
	defer lock.Unlock()
	out.Encode(line)
}

type client struct {
	producer *nsq.Producer
	consumer *nsq.Consumer
	held     map[string]*nsq.Message
	lock     sync.Mutex
}

func (c *client) do(r request) error {
	switch r.Do {
	case "connect":
		config, err := config(r.Options)
		if err != nil {
			return err
		}
		if c.producer, err = nsq.NewProducer(r.Address, config); err != nil {
			return err
		}
		c.producer.SetLoggerLevel(nsq.LogLevelMax)
		return c.producer.Ping()
	case "publish":
		if r.DelayMs > 0 {
			return c.producer.DeferredPublish(r.Topic, time.Duration(r.DelayMs)*time.Millisecond, r.Bodies[0])
		} else if len(r.Bodies) == 1 {
			return c.producer.Publish(r.Topic, r.Bodies[0])
		}
		return c.producer.MultiPublish(r.Topic, r.Bodies)
	case "subscribe":
		return c.subscribe(r)
	case "finish", "requeue", "touch":
		return c.answer(r)
	case "leave":
		c.consumer.Stop()
		<-c.consumer.StopChan
		return nil
	}
	return fmt.Errorf("nobody knows how to %q", r.Do)
}

func (c *client) subscribe(r request) error {
	config, err := config(r.Options)
	if err != nil {
		return err
	}
	config.MaxInFlight = r.InFlight
	if c.consumer, err = nsq.NewConsumer(r.Topic, r.Channel, config); err != nil {
		return err
	}
	c.consumer.SetLoggerLevel(nsq.LogLevelMax)
	c.consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		m.DisableAutoResponse()
		id := string(m.ID[:])
		c.lock.Lock()
		c.held[id] = m
		c.lock.Unlock()
		tell(map[string]any{"message": id, "attempts": m.Attempts, "body": m.Body})
		if r.Finishes {
			c.answer(request{Do: "finish", ID: id})
		}
		return nil
	}))
	if len(r.Lookups) > 0 {
		return c.consumer.ConnectToNSQLookupds(r.Lookups)
	}
	return c.consumer.ConnectToNSQDs(r.Addresses)
}

func (c *client) answer(r request) error {
	c.lock.Lock()
	message := c.held[r.ID]
	if r.Do != "touch" {
		delete(c.held, r.ID)
	}
	c.lock.Unlock()
	if message == nil {
		return fmt.Errorf("no message %s", r.ID)
	}
	switch r.Do {
	case "finish":
		message.Finish()
	case "requeue":
		message.RequeueWithoutBackoff(time.Duration(r.DelayMs) * time.Millisecond)
	case "touch":
		message.Touch()
	}
	return nil
}

func main() {
	c := client{held: map[string]*nsq.Message{}}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err = json.Unmarshal(line, &r); err == nil {
			err = c.do(r)
		}
		if err != nil {
			tell(map[string]any{"error": err.Error()})
		} else {
			tell(map[string]any{"ok": true})
		}
	}
}
