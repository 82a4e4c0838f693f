//! Offers of this node, as a leader, of a place in an ISR. An operator adds the node that the log named to the file, perhaps much later:
//! the leader may have opened anew by then, or have been restarted. So an offer binds until the file's version rises: the offered node
//! has every message that the leader acknowledges under that version.
//!
//! ```text
//! cluster.offers   version, a line for each offer: topic, partition, node; then one line with the crc of all that
//! ```
//! An offer is durable before the log tells it. A thread of its own does that, since no core waits for a disk. Two files have the same
//! content, so that no block holds both; an invalid one is ignored, and written again at startup.

use super::CoordinatorError;
use super::answers::OperatorNote;
use super::twice::Twice;
use crate::base::NodeId;
use crate::base::{PartitionId, TopicId};
use crate::codec::peer::message::Route;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

const NAME: &str = "cluster.offers";

/// Topic, partition, and the node that may join.
pub type Offer = (TopicId, PartitionId, NodeId);

/// Offers under one version of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Offers {
    pub version: u64,
    pub made: BTreeSet<Offer>,
}

/// Offer that a core reports.
pub struct ReportedOffer {
    pub version: u64,
    pub route: Route,
    pub nodes: Vec<NodeId>,
    pub note: Option<OperatorNote>,
}

/// Durable offers of the whole node.
#[derive(Clone)]
pub struct Book {
    files: Twice,
    durable: Arc<Mutex<Offers>>,
}

impl Offers {
    pub fn has(&self, version: u64, route: Route, node: NodeId) -> bool {
        self.version == version && self.made.contains(&(route.topic_id, route.partition, node))
    }

    pub fn add(&mut self, told: &ReportedOffer) {
        if told.version > self.version {
            *self = Offers { version: told.version, ..Offers::default() };
        }
        if told.version == self.version {
            self.made.extend(told.nodes.iter().map(|node| (told.route.topic_id, told.route.partition, *node)));
        }
    }

    fn text(&self) -> String {
        let mut text = format!("version {}\n", self.version);
        for (topic, partition, node) in &self.made {
            let _ = writeln!(text, "{topic} {} {node}", partition.0);
        }
        text
    }

    fn parse(text: &str) -> Option<Offers> {
        let mut lines = text.lines();
        let version = lines.next()?.strip_prefix("version ")?.parse().ok()?;
        let id = |hex: &str| Some(u128::from_str_radix(hex, 16).ok()?.to_be_bytes());
        let offer = |line: &str| {
            let mut words = line.split(' ');
            let (topic, partition, node) = (words.next()?, words.next()?, words.next()?);
            Some((TopicId(id(topic)?), PartitionId(partition.parse().ok()?), NodeId(id(node)?)))
        };
        Some(Offers { version, made: lines.map(offer).collect::<Option<_>>()? })
    }
}

impl Book {
    /// Opens the offers of an earlier process: the newest valid file. A missing file beside a valid one comes from a crash during the
    /// first offer.
    pub fn open(data: &Path) -> Result<Book, CoordinatorError> {
        let files = Twice::new(data, NAME);
        let kept = files.read(Offers::parse).map_err(|(path, what)| CoordinatorError::BadOffers { path, what })?;
        // The offers of one version only grow in number.
        let newest = kept.into_iter().max_by_key(|offers| (offers.version, offers.made.len()));
        Ok(Book { files, durable: Arc::new(Mutex::new(newest.unwrap_or_default())) })
    }

    /// Writes both files, if there is anything to keep. Durable when done.
    pub fn begin(&self) -> Result<(), CoordinatorError> {
        let offers = self.offers();
        if offers.made.is_empty() {
            return Ok(());
        }
        self.write(&offers)
    }

    fn write(&self, offers: &Offers) -> Result<(), CoordinatorError> {
        self.files.write(&offers.text())
    }

    pub fn offers(&self) -> Offers {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Channel on which cores report offers. The log has an offer once it is durable.
    pub fn scribe(&self) -> std::io::Result<Sender<ReportedOffer>> {
        let (sender, receiver) = channel();
        let book = self.clone();
        std::thread::Builder::new().name("offers".into()).spawn(move || book.write_down(&receiver))?;
        Ok(sender)
    }

    /// Writes offers until no core is left.
    fn write_down(&self, receiver: &Receiver<ReportedOffer>) {
        while let Ok(first) = receiver.recv() {
            let told: Vec<ReportedOffer> = [first].into_iter().chain(receiver.try_iter()).collect();
            let mut offers = self.offers();
            told.iter().for_each(|told| offers.add(told));
            if let Err(source) = self.write(&offers) {
                tracing::error!("no node may join an isr before the next version of the cluster file is in force: {source}");
                continue;
            }
            *self.durable.lock().unwrap_or_else(PoisonError::into_inner) = offers;
            told.iter().filter_map(|told| told.note.as_ref()).for_each(OperatorNote::tell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_read_as_they_were_written_and_either_file_may_be_damaged() {
        let told = |version, node| ReportedOffer {
            version,
            route: Route { topic_id: TopicId([7; 16]), partition: PartitionId(3) },
            nodes: vec![NodeId([node; 16])],
            note: None,
        };
        let mut offers = Offers::default();
        [told(4, 1), told(4, 2), told(5, 3), told(5, 4), told(4, 5)].iter().for_each(|told| offers.add(told));
        let route = told(5, 3).route;
        assert!(offers.has(5, route, NodeId([3; 16])) && offers.has(5, route, NodeId([4; 16])));
        assert!(
            !offers.has(4, route, NodeId([1; 16])) && !offers.has(5, route, NodeId([5; 16])),
            "those of an older version are void"
        );
        let data = tempfile::tempdir().unwrap();
        let found = || Book::open(data.path()).map(|book| book.offers());
        assert_eq!(found().unwrap(), Offers::default());
        let book = Book::open(data.path()).unwrap();
        book.write(&offers).unwrap();
        assert_eq!(found().unwrap(), offers);
        for (bad, good) in [(0, 1), (1, 0)] {
            book.write(&offers).unwrap();
            std::fs::write(&book.files.paths[bad], &std::fs::read(&book.files.paths[good]).unwrap()[1..]).unwrap();
            assert_eq!(found().unwrap(), offers, "one of two");
        }
        std::fs::write(&book.files.paths[0], "").unwrap();
        assert!(found().unwrap_err().to_string().contains("cluster.offers is damaged"));
    }
}
