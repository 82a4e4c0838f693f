//! Checks that a node at rest holds back nothing that it owes.

use super::{Book, ChannelKey};
use crate::base::MessagePlace;

impl Book {
    /// A message that was acknowledged and not yet finished by a channel that it is owed to.
    pub fn owes(&self) -> Option<(usize, Option<MessagePlace>, &ChannelKey)> {
        let acknowledged = self.messages.iter().enumerate().filter(|(_, m)| m.is_acknowledged);
        acknowledged.map(|(n, _)| (n, self.place(n))).find_map(|(n, at)| {
            let missing = self.owed(n, at.or(self.anywhere(n))).find(|c| !self.channels[*c].finished.contains(&n))?;
            Some((n, at, missing))
        })
    }

    /// Every acknowledged message was delivered to, and finished by, every channel that was acknowledged before it; of a
    /// MPUB a channel got all or nothing.
    pub fn acked_survives_to_every_channel(&mut self) {
        self.one_channel_is_first();
        self.a_connection_keeps_its_order();
        for (n, _) in self.messages.iter().enumerate().filter(|(_, m)| m.is_acknowledged) {
            let at = self.place(n).or(self.anywhere(n));
            let missing = self.owed(n, at).find(|c| self.goes_on(c) && !self.channels[*c].finished.contains(&n));
            assert!(missing.is_none(), "acked_survives: message {n} ({at:?}) was acknowledged and never came to {missing:?}");
        }
        let part = self.group_that_came_in_part();
        assert!(part.is_none(), "mpub_is_all_or_nothing: of messages, how many, to a channel: {part:?}");
    }
}
