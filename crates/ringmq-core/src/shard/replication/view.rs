//! View of a replica on its partition: the store's view of the log, and the channels.

use crate::base::{ChannelName, Epoch, Position};
use crate::format::snapshot::Doubt;
use crate::format::tail::EpochEnd;
use crate::format::tail::{BatchId, Tail};
use crate::log::{self, Store};
use crate::replica::LogView;
use crate::shard::partitions::ChannelState;
use slab::Slab;

pub struct View<'a> {
    pub store: &'a Store,
    pub log: log::View<'a>,
    pub channels: &'a Slab<ChannelState>,
}

impl LogView for View<'_> {
    fn start(&self) -> (Position, u32) {
        self.log.start()
    }

    fn end(&self) -> Tail {
        self.log.end()
    }

    fn durable(&self) -> Tail {
        self.log.durable()
    }

    fn vouched(&self) -> Position {
        self.log.vouched()
    }

    fn damage(&self) -> Option<(Position, Position)> {
        self.log.damage()
    }

    fn doubt(&self) -> Doubt {
        self.log.doubt()
    }

    fn held(&self, offset: i64) -> Option<BatchId> {
        self.log.held(offset)
    }

    fn run_end(&self, from: i64, bytes_max: usize) -> Option<Position> {
        self.log.run_end(from, bytes_max)
    }

    fn epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        self.log.epochs(below, max, out)
    }

    fn all_epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        self.log.all_epochs(below, max, out)
    }

    fn cursor(&self, channel: &ChannelName) -> Option<(Epoch, u64, Position)> {
        let (_, c) = self.channels.iter().find(|(_, c)| c.name == *channel)?;
        Some((c.machine.epoch(), c.machine.generation(), c.machine.confirmed()))
    }

    fn may_lack_channels(&self) -> bool {
        self.log.may_lack_channels()
    }

    fn takes_facts(&self) -> bool {
        self.store.takes_facts()
    }

    fn channels(&self, out: &mut Vec<ChannelName>) {
        out.extend(self.channels.iter().map(|(_, c)| &c.name).filter(|n| !n.is_ephemeral()).cloned());
    }
}
