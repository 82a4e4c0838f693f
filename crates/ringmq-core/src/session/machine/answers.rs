//! Answers of a session: replies in the order of their commands, errors, and the end after a fatal one.

use super::*;

impl Session {
    /// Answers the command it stalls on with an error instead. After one that is not fatal, `resume` parses on.
    pub fn fail_stalled(&mut self, error: ClientError) {
        if let Some(stalled) = self.stalled.take() {
            self.input.drop_command(stalled.len);
            self.answer_error(&error);
        }
    }

    /// The answer for an accepted command. It leaves when all earlier ones have. Ignored once the session has ended with
    /// an error that has left.
    ///
    /// # Panics
    /// When the slot is not outstanding: given out never, or answered before.
    pub fn reply(&mut self, slot: ReplySlot, result: Result<&'static [u8], ClientError>) {
        match result {
            Ok(data) => {
                self.replies.respond(slot, data, self.output.roomy());
            }
            Err(error) => {
                let mut answer = Vec::new();
                frame::error(&mut answer, &error);
                if error.fatal {
                    self.note_fault(&error.to_string());
                    self.ignore_input();
                } else if self.subscription.take_if(|sub| sub.slot == slot).is_some() {
                    self.state = ConnectionState::Init;
                }
                self.replies.respond_frame(slot, &answer, error.fatal, self.output.frames());
            }
        }
    }

    /// `OK` for an accepted command.
    pub fn reply_ok(&mut self, slot: ReplySlot) {
        self.reply(slot, Ok(OK));
    }

    /// The error for a publish or subscribe that was accepted and then failed, with the code of its command.
    pub fn fail(&mut self, slot: ReplySlot, why: PublishError) {
        let Some(asked) = self.replies.asked(slot) else { return };
        let error = match why {
            PublishError::TooManyConsumers => {
                let name = self.subscription.as_ref().map_or("", |sub| &*sub.name);
                let most = self.limits.max_channel_consumers;
                ClientError::fatal("E_SUB_FAILED", format!("SUB failed consumers for {name} exceeds limit of {most}"))
            }
            _ => failure(asked, why),
        };
        self.reply(slot, Err(error));
    }

    /// A FIN, REQ or TOUCH that was passed on failed. It is said at once, not behind the replies that are outstanding: a later
    /// publish's OK says that the FINs before it did not fail.
    pub fn in_flight_failed(&mut self, id: MessageId, command: InFlightCommand, why: InFlightError) {
        if !self.replies.is_closed() {
            let id = if self.is_placed() { id.binary() } else { id.hex() };
            frame::error(self.output.roomy(), &in_flight_error(&id, command, why));
        }
    }

    pub(super) fn answer_in_flight(&mut self, done: Result<(), InFlightError>, id: &[u8; 16], command: InFlightCommand) {
        if let Err(why) = done
            && !self.replies.is_closed()
        {
            self.answer_error(&in_flight_error(id, command, why));
        }
    }

    pub(super) fn answer_error(&mut self, error: &ClientError) {
        if error.fatal {
            return self.end_with(error);
        }
        let mut answer = Vec::new();
        frame::error(&mut answer, error);
        self.answer_frame(&answer);
    }

    pub(super) fn answer_frame(&mut self, answer: &[u8]) {
        self.replies.push_frame(answer, self.output.roomy());
    }

    pub(super) fn end_with(&mut self, error: &ClientError) {
        self.note_fault(&error.to_string());
        let mut answer = Vec::new();
        frame::error(&mut answer, error);
        self.end(&answer);
    }

    /// Earlier replies go out, then this frame (perhaps none), then the connection closes.
    pub(super) fn end(&mut self, answer: &[u8]) {
        self.ignore_input();
        self.replies.push_last(answer, self.output.frames());
    }

    /// The first one is why the connection ends. Clients choose much of the text: it is shortened, and nothing in it ends a line.
    pub(super) fn note_fault(&mut self, what: &str) {
        if self.fault.is_none() {
            let text: String = what.chars().take(FAULT_LEN_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
            self.fault = Some(text.into());
        }
    }

    /// Takes the reason why the node ends this connection, once.
    pub fn take_fault(&mut self) -> Option<Box<str>> {
        self.fault.take()
    }

    pub(super) fn ignore_input(&mut self) {
        self.ended = true;
        self.stalled = None;
        self.input.clear();
    }

    /// Ends a subscription whose partition is no longer here: earlier replies go out, then the error, and the connection closes.
    pub fn lose_subscription(&mut self, error: &ClientError) {
        if !self.ended {
            self.end_with(error);
        }
    }

    /// Earlier replies go out, then the connection closes without a word, as nsqd's do: its channel was deleted.
    pub fn end_deleted(&mut self) {
        if !self.ended {
            self.end(&[]);
        }
    }
}
