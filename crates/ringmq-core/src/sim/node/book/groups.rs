//! The messages of one MPUB are there all together, or none of them is.

use super::{Book, ChannelKey, StartupFindings};

impl Book {
    pub fn group(&mut self, messages: Vec<usize>) {
        self.groups.push(messages);
    }

    pub(super) fn mpub_is_all_or_nothing(&self, found: &StartupFindings) {
        for group in &self.groups {
            let here = group.iter().filter(|n| found.stored.contains_key(n)).count();
            assert!(here == 0 || here == group.len(), "mpub_is_all_or_nothing: {here} of {group:?} are stored");
        }
    }

    /// A MPUB's messages, how many of them a channel got that should have got all or none, and the channel.
    pub fn group_that_came_in_part(&self) -> Option<(&[usize], usize, &ChannelKey)> {
        let is_whole = |c: &ChannelKey| self.goes_on(c) && !self.cut_channels.contains(c);
        self.channels.iter().filter(|(c, _)| is_whole(c)).find_map(|(channel, known)| {
            let mut groups = self.groups.iter().filter(|g| self.messages[g[0]].topic == channel.0);
            groups.find_map(|group| {
                let got = group.iter().filter(|n| known.finished.contains(n)).count();
                (got > 0 && got < group.len()).then_some((&group[..], got, channel))
            })
        })
    }
}
