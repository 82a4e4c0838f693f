// The load of ../transports.py: NSQ clients that do as little as they can, over plain, TLS, snappy, deflate, or TLS with either.
//
//	transports -address=127.0.0.1:4150 -transport=tls_snappy -work=publish -topic=t -size=100 -messages=200000 -connections=4 -window=100
//
// publish: each connection sends `window` PUBs at once, and the next ones after all their OKs. Over deflate the windows are compressed before
// the work begins: Go's deflate takes more CPU for a message than a server, and both share the machine. consume: each connection has a RDY of the
// window, and finishes what one receive brought with one send. It prints the seconds that the work took, without the connections' begin.
package main

import (
	"bufio"
	"bytes"
	"compress/flate"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang/snappy"
)

var (
	address     = flag.String("address", "127.0.0.1:4150", "")
	transport   = flag.String("transport", "plain", "plain, tls, snappy, deflate, tls_snappy, tls_deflate")
	work        = flag.String("work", "publish", "publish or consume")
	topic       = flag.String("topic", "t", "")
	size        = flag.Int("size", 100, "bytes of a body")
	messages    = flag.Int("messages", 100_000, "of all connections")
	connections = flag.Int("connections", 4, "")
	window      = flag.Int("window", 100, "")
)

type flusher interface{ Flush() error }

type client struct {
	in    *bufio.Reader
	out   *bufio.Writer
	layer flusher
	// Below the compressor.
	stream io.Writer
}

// send flushes all layers: what stands in `out` is one write, one record of TLS, one chunk of the compressor.
func (c *client) send() {
	check(c.out.Flush())
	if c.layer != nil {
		check(c.layer.Flush())
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func (c *client) frame() (kind int32, data []byte) {
	var head [8]byte
	_, err := io.ReadFull(c.in, head[:])
	check(err)
	data = make([]byte, binary.BigEndian.Uint32(head[:4])-4)
	_, err = io.ReadFull(c.in, data)
	check(err)
	return int32(binary.BigEndian.Uint32(head[4:])), data
}

// ok reads the next frame that is no heartbeat.
func (c *client) ok() []byte {
	for {
		kind, data := c.frame()
		if kind != 0 {
			log.Fatalf("%d %s", kind, data)
		}
		if string(data) != "_heartbeat_" {
			return data
		}
		c.out.WriteString("NOP\n")
	}
}

func (c *client) body(command string, body []byte) {
	c.out.WriteString(command)
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(body)))
	c.out.Write(length[:])
	c.out.Write(body)
}

func connect() *client {
	wire, err := net.Dial("tcp", *address)
	check(err)
	c := &client{in: bufio.NewReaderSize(wire, 64<<10), out: bufio.NewWriterSize(wire, 64<<10)}
	asked := map[string]any{"feature_negotiation": true, "tls_v1": strings.Contains(*transport, "tls"),
		"snappy": strings.Contains(*transport, "snappy"), "deflate": strings.Contains(*transport, "deflate"), "deflate_level": 6}
	text, _ := json.Marshal(asked)
	c.out.WriteString("  V2")
	c.body("IDENTIFY\n", text)
	c.send()
	c.ok()
	var stream io.Writer = wire
	c.stream = wire
	if asked["tls_v1"] == true {
		secure := tls.Client(wire, &tls.Config{InsecureSkipVerify: true})
		check(secure.Handshake())
		stream, c.stream = secure, secure
		c.in, c.out = bufio.NewReaderSize(secure, 64<<10), bufio.NewWriterSize(stream, 64<<10)
		c.ok()
	}
	// The next layer reads what was read ahead, too.
	switch {
	case asked["snappy"] == true:
		c.in, c.out = bufio.NewReaderSize(snappy.NewReader(c.in), 64<<10), bufio.NewWriterSize(snappy.NewWriter(stream), 64<<10)
		c.ok()
	case asked["deflate"] == true:
		packed, _ := flate.NewWriter(stream, 6)
		c.in, c.out, c.layer = bufio.NewReaderSize(flate.NewReader(c.in), 64<<10), bufio.NewWriterSize(packed, 64<<10), packed
		c.ok()
	}
	return c
}

// record is a line of JSON with numbers that differ, as messages often are; it compresses to about a half.
func record(random *rand.Rand) []byte {
	body := make([]byte, 0, *size+64)
	for len(body) < *size {
		body = fmt.Appendf(body, `{"user":%d,"item":"%x","price":%d.%02d,"at":"2024-03-%02dT12:%02d:00Z"}`, random.Intn(1_000_000),
			random.Int63(), random.Intn(1000), random.Intn(100), 1+random.Intn(28), random.Intn(60))
	}
	return body[:*size]
}

// windows are the PUBs that a connection sends at once, one after the other. Compressed ones refer to nothing before them, so each may follow
// any other in a stream.
func windows(random *rand.Rand) [][]byte {
	bodies := make([][]byte, 256)
	for n := range bodies {
		bodies[n] = record(random)
	}
	made := make([][]byte, 16)
	for n := range made {
		var buffer bytes.Buffer
		c := &client{out: bufio.NewWriter(&buffer)}
		if strings.Contains(*transport, "deflate") {
			packed, _ := flate.NewWriter(&buffer, 6)
			c.out, c.layer = bufio.NewWriterSize(packed, 64<<10), packed
		}
		for left := *window; left > 0; left-- {
			c.body("PUB "+*topic+"\n", bodies[random.Intn(len(bodies))])
		}
		c.send()
		made[n] = buffer.Bytes()
	}
	return made
}

func publish(c *client, count int, windows [][]byte) {
	out := io.Writer(c.out)
	if strings.Contains(*transport, "deflate") {
		out = c.stream
	}
	for n := 0; count > 0; n++ {
		_, err := out.Write(windows[n%len(windows)])
		check(err)
		if out == c.out {
			c.send()
		}
		for left := *window; left > 0; left-- {
			c.ok()
		}
		count -= *window
	}
}

func consume(c *client, left *atomic.Int64) {
	for {
		kind, data := c.frame()
		switch {
		case kind == 2:
			c.out.WriteString("FIN ")
			c.out.Write(data[10:26])
			c.out.WriteString("\n")
			if left.Add(-1) <= 0 {
				c.send()
				return
			}
		case kind == 0 && string(data) == "_heartbeat_":
			c.out.WriteString("NOP\n")
		}
		if c.in.Buffered() == 0 {
			c.send()
		}
	}
}

func main() {
	flag.Parse()
	clients, made := make([]*client, *connections), make([][][]byte, *connections)
	for n := range clients {
		clients[n] = connect()
		if *work == "publish" {
			made[n] = windows(rand.New(rand.NewSource(int64(n))))
		}
	}
	var left atomic.Int64
	left.Store(int64(*messages))
	done := make(chan bool, *connections)
	begin := time.Now()
	for n, c := range clients {
		n, c := n, c
		if *work == "publish" {
			go func() {
				publish(c, *messages / *connections, made[n])
				done <- true
			}()
			continue
		}
		fmt.Fprintf(c.out, "SUB %s c\n", *topic)
		c.send()
		c.ok()
		fmt.Fprintf(c.out, "RDY %d\n", *window)
		c.send()
		go func() {
			consume(c, &left)
			done <- true
		}()
	}
	// the one that has the last message ends; the others have nothing more to wait for
	wanted := 1
	if *work == "publish" {
		wanted = *connections
	}
	for ; wanted > 0; wanted-- {
		<-done
	}
	fmt.Println(time.Since(begin).Seconds())
}
