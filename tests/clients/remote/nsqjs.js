// nsqjs by remote control; README.md has the protocol.
'use strict'
const fs = require('fs')
const readline = require('readline')
const nsq = require('nsqjs')

const held = new Map()
let writer = null
let reader = null

const tell = (line) => process.stdout.write(JSON.stringify(line) + '\n')

function config(options) {
  const asked = {snappy: options.snappy === true, lookupdPollInterval: 1, maxBackoffDuration: 0}
  if (options.deflate) Object.assign(asked, {deflate: true, deflateLevel: options.deflate})
  if (options.auth) asked.authSecret = options.auth
  if (options.timeout_ms) asked.messageTimeout = options.timeout_ms
  if (options.tls) {
    const {ca, cert, key} = options.tls
    Object.assign(asked, {tls: true, ca: fs.readFileSync(ca), cert: fs.readFileSync(cert), key: fs.readFileSync(key)})
  }
  return asked
}

const connect = (request) => new Promise((resolve, reject) => {
  const [host, port] = request.address.split(':')
  writer = new nsq.Writer(host, Number(port), config(request.options || {}))
  writer.on('ready', resolve)
  writer.on('error', reject)
  writer.on('closed', () => reject(new Error('closed')))
  writer.connect()
})

const publish = (request) => new Promise((resolve, reject) => {
  const bodies = request.bodies.map((body) => Buffer.from(body, 'base64'))
  const done = (error) => (error ? reject(error) : resolve())
  if (request.delay_ms) writer.deferPublish(request.topic, bodies, request.delay_ms, done)
  else writer.publish(request.topic, bodies, done)
})

function subscribe(request) {
  reader = new nsq.Reader(request.topic, request.channel, {
    ...config(request.options || {}),
    maxInFlight: request.in_flight,
    nsqdTCPAddresses: request.addresses || [],
    lookupdHTTPAddresses: request.lookups || [],
  })
  reader.on('message', (message) => {
    held.set(message.id, message)
    tell({message: message.id, attempts: message.attempts, body: message.body.toString('base64')})
    if (request.finishes) answer({do: 'finish', id: message.id})
  })
  reader.on('error', (error) => process.stderr.write(`${error}\n`))
  reader.connect()
}

function answer(request) {
  const message = held.get(request.id)
  if (!message) throw new Error(`no message ${request.id}`)
  if (request.do === 'touch') return message.touch()
  held.delete(request.id)
  if (request.do === 'finish') message.finish()
  else message.requeue(request.delay_ms || 0, false)
}

async function act(request) {
  switch (request.do) {
    case 'connect': return connect(request)
    case 'publish': return publish(request)
    case 'subscribe': return subscribe(request)
    case 'leave': return reader.close()
    case 'finish': case 'requeue': case 'touch': return answer(request)
    default: throw new Error(`nobody knows how to ${request.do}`)
  }
}

// Requests one after the other.
let turn = Promise.resolve()
readline.createInterface({input: process.stdin}).on('line', (line) => {
  turn = turn.then(() => act(JSON.parse(line))).then(() => tell({ok: true}), (error) => tell({error: String(error)}))
}).on('close', () => process.exit(0))
