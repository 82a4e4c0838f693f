//! Finds the next command in a client's bytes. Checks as nsqd does, in nsqd's order and with its texts: state, number of parameters,
//! names, sizes, then the body. So a bad name or size is refused before its body has come.
//!
//! Never copies a body and never believes a length beyond the limits.

use super::error::{ClientError, quoted};
use super::{Bodies, LINE_LEN_MAX, Limits, MpubBodies};
use crate::base::PartitionId;
use crate::base::name::is_valid_name;

/// Protocol state of a connection, which decides on the permitted commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ConnectionState {
    #[default]
    Init,
    Subscribed,
    /// State after CLS.
    Closing,
}

#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub limits: &'a Limits,
    pub state: ConnectionState,
    /// A consumer must have them.
    pub has_heartbeats: bool,
    /// The connection has no TLS and must: only IDENTIFY is taken.
    pub lacks_tls: bool,
    /// Ids are 16 bytes of any value (`SUB_ORDERED`), spaces and newlines among them.
    pub has_binary_ids: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// The JSON.
    Identify(&'a [u8]),
    /// The secret.
    Auth(&'a [u8]),
    Publish {
        topic: &'a str,
        /// `None`: the one whose turn it is.
        partition: Option<PartitionId>,
        bodies: Bodies<'a>,
    },
    Subscribe {
        topic: &'a str,
        channel: &'a str,
        /// `None`: all of the topic.
        partition: Option<PartitionId>,
        /// `SUB_ORDERED`.
        is_ordered: bool,
    },
    Ready(u32),
    /// Ids are as they came: 16 bytes that are no id of ours are simply not in flight.
    Finish(&'a [u8; 16]),
    Requeue {
        id: &'a [u8; 16],
        delay_ms: u64,
    },
    Touch(&'a [u8; 16]),
    Close,
    /// NOP, and RDY after CLS.
    Nop,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// The line's newline is not there yet: the last byte is none.
    IncompleteLine,
    /// Incomplete body. Nothing can be decided before `need` bytes are there, and no later byte is looked at then. `expect` (at least
    /// `need`) is the command's claimed length, within the limits: space for it may be reserved at once.
    IncompleteBody { need: usize, expect: usize },
    /// A command that takes `len` bytes.
    Command { command: Command<'a>, len: usize },
    /// An MPUB to this topic: asked again, with `progress.authorized` set, if the client may do that.
    Authorize { topic: &'a str },
    /// Always fatal: where the next command would start is not known.
    Fault(ClientError),
    /// Closes the connection without an error frame, as nsqd does.
    LineTooLong,
}

/// Progress of an incomplete command, so that a body that arrives byte by byte is not parsed again and again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes known to hold no newline.
    scanned: u32,
    /// Parsed messages of an MPUB's body, and their end (from the body's start; 0: not begun).
    walked_count: u32,
    walked_len: u32,
    /// True if the client may publish to the topic.
    pub authorized: bool,
}

/// Decodes the command that `bytes` begin with. After an incomplete one it is called again with the same `progress` and
/// the same bytes and more of them, else with a fresh one.
pub fn decode<'a>(bytes: &'a [u8], progress: &mut Progress, context: &Context<'_>) -> Decoded<'a> {
    let window = &bytes[..bytes.len().min(LINE_LEN_MAX)];
    let id_end = if context.has_binary_ids { binary_id_end(window) } else { 0 };
    if window.len() < id_end {
        // A newline among them ends nothing.
        return Decoded::IncompleteBody { need: id_end + 1, expect: id_end + 1 };
    }
    progress.scanned = progress.scanned.max(id_end as u32);
    let Some(newline) = window[progress.scanned as usize..].iter().position(|&b| b == b'\n') else {
        if window.len() == LINE_LEN_MAX {
            return Decoded::LineTooLong;
        }
        progress.scanned = window.len() as u32;
        return Decoded::IncompleteLine;
    };
    let newline = progress.scanned as usize + newline;
    progress.scanned = newline as u32;
    let line = &bytes[..newline];
    let line = if newline > id_end { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
    let body = Body { bytes, start: newline + 1 };
    match command(line, body, progress, context) {
        Ok((command, len)) => {
            *progress = Progress::default();
            Decoded::Command { command, len }
        }
        Err(DecodeStop::Fault(error)) => Decoded::Fault(error),
        Err(DecodeStop::Authorize(topic)) => Decoded::Authorize { topic },
        Err(DecodeStop::Need { need, expect }) => Decoded::IncompleteBody { need, expect: expect.max(need) },
    }
}

/// End of the binary id in the command that `bytes` begin with; no byte before it ends a line.
fn binary_id_end(bytes: &[u8]) -> usize {
    let names: [&[u8]; 3] = [b"FIN ", b"REQ ", b"TOUCH "];
    names.iter().find(|name| bytes.starts_with(name)).map_or(0, |name| name.len() + ID_LEN)
}

const ID_LEN: usize = 16;

enum DecodeStop<'a> {
    Fault(ClientError),
    Need {
        need: usize,
        expect: usize,
    },
    /// Question whether the client may publish to the topic.
    Authorize(&'a str),
}

impl From<ClientError> for DecodeStop<'_> {
    fn from(error: ClientError) -> Self {
        DecodeStop::Fault(error)
    }
}

fn invalid(text: impl Into<Vec<u8>>) -> ClientError {
    ClientError::fatal("E_INVALID", text)
}

/// E_INVALID with `text`, followed by the client's bytes as they came.
fn invalid_echo(text: &str, echo: &[u8]) -> ClientError {
    invalid([text.as_bytes(), b" ", echo].concat())
}

/// Body that follows a command line.
#[derive(Clone, Copy)]
struct Body<'a> {
    bytes: &'a [u8],
    start: usize,
}

impl<'a> Body<'a> {
    /// The signed number at `at` (from the body's start).
    fn number(&self, at: usize) -> Result<i32, DecodeStop<'a>> {
        let end = self.start + at + 4;
        let bytes: &[u8] = self.bytes.get(end - 4..end).ok_or(DecodeStop::Need { need: end, expect: end })?;
        Ok(i32::from_be_bytes(bytes.try_into().expect("the range is 4 long")))
    }

    /// The `len` bytes behind the size, and where they end.
    fn sized(&self, len: usize) -> Result<(&'a [u8], usize), DecodeStop<'a>> {
        let end = self.start + 4 + len;
        let bytes = self.bytes.get(end - len..end).ok_or(DecodeStop::Need { need: end, expect: end })?;
        Ok((bytes, end))
    }
}

fn command<'a>(
    line: &'a [u8],
    body: Body<'a>,
    progress: &mut Progress,
    context: &Context<'_>,
) -> Result<(Command<'a>, usize), DecodeStop<'a>> {
    let subscribed = context.state != ConnectionState::Init;
    let end = body.start;
    if context.has_binary_ids
        && let Some(id) = binary_id_end(line).checked_sub(ID_LEN).and_then(|at| line.get(at..at + ID_LEN))
    {
        return Ok((with_binary_id(line, id.try_into().expect("it is 16 long"), context)?, end));
    }
    let mut params = line.split(|&b| b == b' ');
    let name = params.next().expect("a split has a first part");
    if context.lacks_tls && name != b"IDENTIFY" {
        return Err(invalid([b"cannot ", name, b" in current state (TLS required)"].concat()).into());
    }
    match name {
        b"FIN" => Ok((Command::Finish(in_flight_id("FIN", subscribed, &mut params, 1)?.0), end)),
        b"RDY" => Ok((ready(params.next(), context)?, end)),
        b"REQ" => {
            let (id, delay) = in_flight_id("REQ", subscribed, &mut params, 2)?;
            let delay = digits(delay).ok_or_else(|| invalid_echo("REQ could not parse timeout", delay))?;
            Ok((Command::Requeue { id, delay_ms: delay.min(context.limits.max_req_timeout_ms) }, end))
        }
        b"PUB" => publish(params.next(), only(&mut params), body, context.limits),
        b"MPUB" => multi_publish(params.next(), only(&mut params), body, progress, context.limits),
        b"DPUB" => deferred_publish(params.next(), params.next(), body, context.limits),
        b"NOP" => Ok((Command::Nop, end)),
        b"TOUCH" => Ok((Command::Touch(in_flight_id("TOUCH", subscribed, &mut params, 1)?.0), end)),
        b"SUB" => Ok((subscribe([params.next(), params.next(), only(&mut params)], false, context)?, end)),
        b"SUB_ORDERED" => Ok((subscribe([params.next(), params.next(), params.next()], true, context)?, end)),
        b"CLS" if context.state == ConnectionState::Subscribed => Ok((Command::Close, end)),
        b"CLS" => Err(invalid("cannot CLS in current state").into()),
        b"IDENTIFY" if subscribed => Err(invalid("cannot IDENTIFY in current state").into()),
        b"IDENTIFY" => {
            let (json, end) = whole_body("IDENTIFY", body, context.limits)?;
            Ok((Command::Identify(json), end))
        }
        b"AUTH" if subscribed => Err(invalid("cannot AUTH in current state").into()),
        b"AUTH" if params.next().is_some() => Err(invalid("AUTH invalid number of parameters").into()),
        b"AUTH" => {
            let (secret, end) = whole_body("AUTH", body, context.limits)?;
            Ok((Command::Auth(secret), end))
        }
        _ => Err(invalid_echo("invalid command", name).into()),
    }
}

/// FIN, REQ or TOUCH with an id that is found by its place.
fn with_binary_id<'a>(line: &'a [u8], id: &'a [u8; ID_LEN], context: &Context<'_>) -> Result<Command<'a>, ClientError> {
    let rest = &line[binary_id_end(line)..];
    if rest.first().is_some_and(|&b| b != b' ') {
        return Err(invalid("invalid message ID"));
    }
    Ok(match line[0] {
        b'F' => Command::Finish(id),
        b'T' => Command::Touch(id),
        _ => {
            let delay = rest.split(|&b| b == b' ').nth(1);
            let delay = delay.ok_or_else(|| invalid("REQ insufficient number of params"))?;
            let delay = digits(delay).ok_or_else(|| invalid_echo("REQ could not parse timeout", delay))?;
            Command::Requeue { id, delay_ms: delay.min(context.limits.max_req_timeout_ms) }
        }
    })
}

/// A partition is named by a parameter that nothing follows; more of them are ignored, all, as nsqd ignores them.
fn only<'a>(params: &mut impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    params.next().filter(|_| params.next().is_none())
}

/// The number of a partition; one that no topic can have is the highest that a number can say.
fn partition(param: Option<&[u8]>) -> Result<Option<PartitionId>, ClientError> {
    // Clients of the replicated NSQ send -1 for "any"; and nsqd ignores a space at the line's end.
    let Some(number) = param.filter(|p| !p.is_empty() && *p != b"-1") else { return Ok(None) };
    let parsed = digits(number)
        .ok_or_else(|| ClientError::fatal("E_BAD_PARTITION", format!("topic partition is not valid: {}", quoted(number))))?;
    Ok(Some(PartitionId(u16::try_from(parsed).unwrap_or(u16::MAX))))
}

/// The id, and for REQ the parameter after it.
fn in_flight_id<'a>(
    name: &str,
    subscribed: bool,
    params: &mut impl Iterator<Item = &'a [u8]>,
    count: usize,
) -> Result<(&'a [u8; 16], &'a [u8]), ClientError> {
    if !subscribed {
        return Err(invalid(format!("cannot {name} in current state")));
    }
    let (Some(id), second) = (params.next(), params.next()) else {
        return Err(invalid(format!("{name} insufficient number of params")));
    };
    if count == 2 && second.is_none() {
        return Err(invalid(format!("{name} insufficient number of params")));
    }
    let id = id.try_into().map_err(|_| invalid("invalid message ID"))?;
    Ok((id, second.unwrap_or_default()))
}

/// Plain decimal digits, none of them meaning 0; too many mean the largest number.
fn digits(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0u64, |n, b| b.is_ascii_digit().then(|| n.saturating_mul(10).saturating_add((b - b'0') as u64)))
}

fn ready(count: Option<&[u8]>, context: &Context<'_>) -> Result<Command<'static>, ClientError> {
    match context.state {
        ConnectionState::Closing => return Ok(Command::Nop),
        ConnectionState::Init => return Err(invalid("cannot RDY in current state")),
        ConnectionState::Subscribed => {}
    }
    let count = count.unwrap_or(b"1");
    let count = digits(count).ok_or_else(|| invalid_echo("RDY could not parse count", count))?;
    let max = context.limits.max_rdy_count;
    // Fatal: else the client and the node would disagree on how much is allowed.
    match u32::try_from(count) {
        Ok(count) if count <= max => Ok(Command::Ready(count)),
        _ => Err(invalid(format!("RDY count {count} out of range 0-{max}"))),
    }
}

fn valid_name(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|name| is_valid_name(name))
}

fn subscribe<'a>(params: [Option<&'a [u8]>; 3], is_ordered: bool, context: &Context<'_>) -> Result<Command<'a>, ClientError> {
    if context.state != ConnectionState::Init {
        return Err(invalid("cannot SUB in current state"));
    }
    if !context.has_heartbeats {
        return Err(invalid("cannot SUB with heartbeats disabled"));
    }
    let [Some(topic), Some(channel), number] = params else {
        return Err(invalid("SUB insufficient number of parameters"));
    };
    let bad = |code, what, name| ClientError::fatal(code, format!("SUB {what} name {} is not valid", quoted(name)));
    let topic = valid_name(topic).ok_or_else(|| bad("E_BAD_TOPIC", "topic", topic))?;
    let channel = valid_name(channel).ok_or_else(|| bad("E_BAD_CHANNEL", "channel", channel))?;
    Ok(Command::Subscribe { topic, channel, partition: partition(number)?, is_ordered })
}

/// The topic of a publish, and its partition. A second parameter that begins like no number belongs to a name with a space.
fn published_to<'a>(topic: &'a [u8], number: Option<&[u8]>, what: &str) -> Result<(&'a str, Option<PartitionId>), ClientError> {
    let bad = |name: &[u8]| ClientError::fatal("E_BAD_TOPIC", format!("{what} {} is not valid", quoted(name)));
    let valid = valid_name(topic).ok_or_else(|| bad(topic))?;
    match number {
        Some(rest) if rest.first().is_some_and(|b| !b"+-0123456789".contains(b)) => Err(bad(&[topic, b" ", rest].concat())),
        _ => Ok((valid, partition(number)?)),
    }
}

/// A body that is one blob of at most the body limit.
fn whole_body<'a>(name: &str, body: Body<'a>, limits: &Limits) -> Result<(&'a [u8], usize), DecodeStop<'a>> {
    let size = body.number(0)?;
    let bad = |text: String| ClientError::fatal("E_BAD_BODY", text);
    if i64::from(size) > limits.max_body_size as i64 {
        return Err(bad(format!("{name} body too big {size} > {}", limits.max_body_size)).into());
    }
    if size <= 0 {
        return Err(bad(format!("{name} invalid body size {size}")).into());
    }
    body.sized(size as usize)
}

fn publish<'a>(
    topic: Option<&'a [u8]>,
    number: Option<&'a [u8]>,
    body: Body<'a>,
    limits: &Limits,
) -> Result<(Command<'a>, usize), DecodeStop<'a>> {
    let topic = topic.ok_or_else(|| invalid("PUB insufficient number of parameters"))?;
    let (topic, partition) = published_to(topic, number, "PUB topic name")?;
    let (bytes, end) = one_message("PUB", body, limits)?;
    Ok((Command::Publish { topic, partition, bodies: Bodies::One(bytes) }, end))
}

/// Parses a DPUB with nsqd's checks. Ignores words behind the delay, as nsqd does.
fn deferred_publish<'a>(
    topic: Option<&'a [u8]>,
    delay: Option<&'a [u8]>,
    body: Body<'a>,
    limits: &Limits,
) -> Result<(Command<'a>, usize), DecodeStop<'a>> {
    let (Some(topic), Some(delay)) = (topic, delay) else {
        return Err(invalid("DPUB insufficient number of parameters").into());
    };
    let (topic, partition) = published_to(topic, None, "DPUB topic name")?;
    let delay_ms = digits(delay).ok_or_else(|| invalid_echo("DPUB could not parse timeout", delay))?;
    let delay_max_ms = limits.max_req_timeout_ms;
    if delay_ms > delay_max_ms {
        return Err(invalid(format!("DPUB timeout {delay_ms} out of range 0-{delay_max_ms}")).into());
    }
    let (body, end) = one_message("DPUB", body, limits)?;
    let bodies = if delay_ms == 0 { Bodies::One(body) } else { Bodies::Deferred { body, delay_ms } };
    Ok((Command::Publish { topic, partition, bodies }, end))
}

/// The body of one message, and where it ends.
fn one_message<'a>(name: &str, body: Body<'a>, limits: &Limits) -> Result<(&'a [u8], usize), DecodeStop<'a>> {
    let size = body.number(0)?;
    let bad = |text: String| ClientError::fatal("E_BAD_MESSAGE", text);
    if size <= 0 {
        return Err(bad(format!("{name} invalid message body size {size}")).into());
    }
    if size as usize > limits.max_msg_size {
        return Err(bad(format!("{name} message too big {size} > {}", limits.max_msg_size)).into());
    }
    body.sized(size as usize)
}

/// Parses an MPUB. The count of messages ends it, as in nsqd; the announced body size only has to pass the limit. Unlike in nsqd, the
/// sum of the messages must pass the limit too, or one MPUB could fill the memory.
fn multi_publish<'a>(
    topic: Option<&'a [u8]>,
    number: Option<&'a [u8]>,
    body: Body<'a>,
    progress: &mut Progress,
    limits: &Limits,
) -> Result<(Command<'a>, usize), DecodeStop<'a>> {
    let topic = topic.ok_or_else(|| invalid("MPUB insufficient number of parameters"))?;
    // The code stands twice in nsqd's frame.
    let (topic, partition) = published_to(topic, number, "E_BAD_TOPIC MPUB topic name")?;
    // Before anything of the body is looked at, where a PUB's is read first.
    if limits.auth_required && !progress.authorized {
        return Err(DecodeStop::Authorize(topic));
    }
    let bad = |code, text: String| ClientError::fatal(code, text);
    let size = body.number(0)?;
    if size <= 0 {
        return Err(bad("E_BAD_BODY", format!("MPUB invalid body size {size}")).into());
    }
    if size as usize > limits.max_body_size {
        return Err(bad("E_BAD_BODY", format!("MPUB body too big {size} > {}", limits.max_body_size)).into());
    }
    let expect = body.start + 4 + size as usize;
    let claimed = |stop| match stop {
        DecodeStop::Need { need, .. } => DecodeStop::Need { need, expect },
        fault => fault,
    };
    let count = body.number(4).map_err(claimed)?;
    // The smallest message takes 5 bytes.
    if count <= 0 || count as usize > limits.max_body_size.saturating_sub(4) / 5 {
        return Err(bad("E_BAD_BODY", format!("MPUB invalid message count {count}")).into());
    }
    // Offsets are from the body's start; the size itself takes the first 4 bytes and the count the next.
    const MESSAGES: usize = 8;
    let mut at = (progress.walked_len as usize).max(MESSAGES);
    while progress.walked_count < count as u32 {
        let size = body.number(at).map_err(claimed)?;
        if size <= 0 {
            let index = progress.walked_count;
            return Err(bad("E_BAD_MESSAGE", format!("MPUB invalid message({index}) body size {size}")).into());
        }
        if size as usize > limits.max_msg_size {
            return Err(bad("E_BAD_MESSAGE", format!("MPUB message too big {size} > {}", limits.max_msg_size)).into());
        }
        let next = at + 4 + size as usize;
        if next - 4 > limits.max_body_size {
            return Err(bad("E_BAD_BODY", format!("MPUB body too big {} > {}", next - 4, limits.max_body_size)).into());
        }
        let end = body.start + next;
        if body.bytes.len() < end {
            return Err(claimed(DecodeStop::Need { need: end, expect }));
        }
        at = next;
        progress.walked_count += 1;
        // At most the body limit and 4, which is below 2^32.
        progress.walked_len = at as u32;
    }
    let end = body.start + at;
    let bodies = MpubBodies::walked(&body.bytes[body.start + MESSAGES..end], count as u32);
    Ok((Command::Publish { topic, partition, bodies: Bodies::Many(bodies) }, end))
}
