//! The layers of a connection (TLS, compression): how an IDENTIFY adds them, and how bytes pass through them.
//!
//! The answer to IDENTIFY goes out as the connection was before; each layer then says `OK` through itself and those below it.

use super::Session;
use crate::base::Now;
use crate::codec::nsq::{ClientError, OK, frame};
use crate::session::Host;
use crate::transport::{Decoded, Transport};
use std::time::Duration;

/// Limit from the answer to IDENTIFY to the end of TLS's handshake, as in nsqd.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

impl Session {
    /// Adds the layers that an IDENTIFY has asked for; `unread` came behind the IDENTIFY and behind the buffered bytes. False: none was
    /// asked for.
    pub(super) fn begin_upgrade(&mut self, now: Now, unread: &[u8]) -> bool {
        let Some(upgrade) = self.upgrade.take() else { return false };
        let mut behind = self.input.take();
        behind.extend_from_slice(unread);
        let transport = self.transport.get_or_insert_with(|| Box::new(Transport::new(vec![])));
        // the answer goes through the former layers
        let (out, terms) = (self.output.take_frames(), self.limits.tls.as_ref().filter(|_| upgrade.tls));
        let begun = transport.seal(&out).and_then(|()| transport.begin(upgrade, terms, &behind));
        if let Err(error) = begun {
            self.fail_handshake(&error);
        } else if upgrade.tls {
            self.handshake_until = Some(now.ticks + HANDSHAKE_MAX);
        } else {
            self.say_ok(false);
        }
        true
    }

    /// Sends the `OK` of each new layer.
    fn say_ok(&mut self, with_tls: bool) {
        let mut ok = Vec::new();
        frame::response(&mut ok, OK);
        let Some(transport) = &mut self.transport else { return };
        let mut said = if with_tls { transport.seal_uncompressed(&ok) } else { Ok(()) };
        if transport.compression().is_some() {
            said = said.and_then(|()| transport.seal(&ok));
        }
        if let Err(error) = said {
            self.fail_handshake(&error);
        }
    }

    /// Bytes of the socket, of a connection with layers.
    pub(super) fn on_wire(&mut self, now: Now, mut bytes: &[u8], host: &mut impl Host) {
        while !self.ended {
            let is_reading = self.wants_reading();
            let Some(transport) = &mut self.transport else { return };
            if !is_reading {
                return transport.keep(bytes);
            }
            let mut plain = Vec::new();
            let decoded = transport.decode(&mut bytes, &mut plain);
            if self.handshake_until.is_some() && !transport.is_handshaking() && !matches!(decoded, Decoded::Fault(_)) {
                self.handshake_until = None;
                self.read_since = now.ticks;
                self.say_ok(true);
            }
            if !plain.is_empty() {
                self.on_plain(now, &plain, host);
            }
            match decoded {
                Decoded::More => {}
                Decoded::Dry => return,
                Decoded::End => return self.on_end(),
                Decoded::Fault(fault) if self.handshake_until.is_some() => return self.fail_handshake(&fault),
                Decoded::Fault(fault) => return self.end_with(&ClientError::fatal("E_INVALID", fault)),
            }
        }
    }

    /// Decodes the bytes that were kept while the session took nothing.
    pub(super) fn pump(&mut self, now: Now, host: &mut impl Host) {
        if self.transport.as_ref().is_some_and(|t| t.has_kept()) {
            self.on_wire(now, &[], host);
        }
    }

    /// Answers a failed TLS handshake in plaintext, after the bytes of TLS.
    pub(super) fn fail_handshake(&mut self, what: &str) {
        self.handshake_until = None;
        let error = ClientError::fatal("E_IDENTIFY_FAILED", format!("IDENTIFY failed {what}"));
        self.note_fault(&error.to_string());
        let mut answer = Vec::new();
        frame::error(&mut answer, &error);
        if let Some(transport) = &mut self.transport {
            transport.abandon(&answer);
        }
        self.end(&[]);
    }

    /// Bytes that the socket is to send.
    pub(super) fn seal_output(&mut self) -> Vec<u8> {
        let (out, is_closing) = (self.output.take_frames(), self.is_closing());
        let Some(transport) = &mut self.transport else { return out };
        let sealed = if out.is_empty() { Ok(()) } else { transport.seal(&out) };
        if is_closing {
            transport.close();
        }
        let wire = transport.take_output();
        if let Err(fault) = sealed {
            self.note_fault(&fault);
            self.ignore_input();
            self.is_dead = true;
        }
        wire
    }
}
