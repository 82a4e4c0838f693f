//! One file of the simulated disk: its image, and its blocks that are not durable. Copies share all blocks that neither has written
//! since, because a disk is copied for each check.

use crate::base::{BLOCK, Rng};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

pub const SECTOR: usize = 512;
const SECTORS: usize = BLOCK / SECTOR;

/// `None`: zeros.
type Block = Option<Arc<[u8; BLOCK]>>;

/// A block's contents, and the sectors for which they count, as bits.
#[derive(Clone, Debug)]
struct Version {
    block: Block,
    sectors: u8,
}

impl Version {
    fn sector(&self, sector: usize) -> [u8; SECTOR] {
        let bytes = self.block.as_ref().map(|block| &block[sector * SECTOR..][..SECTOR]);
        bytes.map_or([0; SECTOR], |bytes| bytes.try_into().expect("a sector"))
    }
}

/// A file. Writes are whole blocks; they tear at sectors.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    image: Vec<Block>,
    len: usize,
    /// The image in one piece, made on request, until the next write.
    whole: Arc<OnceLock<Vec<u8>>>,
    /// Blocks of the image that are not durable, with their former contents, oldest first. The first version that has a sector is that
    /// sector's durable content.
    dirty: BTreeMap<usize, Vec<Version>>,
    /// Writes that were issued and not completed, by their operation: their blocks.
    in_flight: BTreeMap<u64, (usize, usize)>,
    /// Blocks of failed writes and syncs, until they are written again.
    doubtful: BTreeSet<usize>,
}

/// The first block of some bytes, and how many there are.
fn blocks(at: u64, len: usize) -> (usize, usize) {
    (at as usize / BLOCK, len / BLOCK)
}

impl File {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        self.whole.get_or_init(|| self.read(0, self.len))
    }

    /// Contents of a range, as far as the file goes.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let (from, to) = (at.min(self.len), (at + len).min(self.len));
        let mut bytes = Vec::with_capacity(to - from);
        let mut at = from;
        while at < to {
            let end = to.min((at / BLOCK + 1) * BLOCK);
            match &self.image[at / BLOCK] {
                Some(block) => bytes.extend_from_slice(&block[at % BLOCK..][..end - at]),
                None => bytes.resize(bytes.len() + end - at, 0),
            }
            at = end;
        }
        bytes
    }

    /// The image is about to change.
    fn changes(&mut self) {
        match Arc::get_mut(&mut self.whole) {
            Some(own) => drop(own.take()),
            None => self.whole = Arc::default(),
        }
    }

    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        self.changes();
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(BLOCK - at % BLOCK));
            let block = &mut self.image[at / BLOCK];
            match <&[u8; BLOCK]>::try_from(piece) {
                Ok(whole) => *block = Some(Arc::new(*whole)),
                Err(_) => {
                    let block = Arc::make_mut(block.get_or_insert_with(|| Arc::new([0; BLOCK])));
                    block[at % BLOCK..][..piece.len()].copy_from_slice(piece);
                }
            }
            (at, rest) = (at + piece.len(), behind);
        }
    }

    // ---- writes

    /// A write that was issued stands in the image.
    pub fn begin(&mut self, number: u64, at: u64, parts: &[Bytes]) {
        let len = match parts {
            [one] => {
                self.put(at, one);
                one.len()
            }
            parts => {
                let bytes = parts.concat();
                self.put(at, &bytes);
                bytes.len()
            }
        };
        self.in_flight.insert(number, blocks(at, len));
    }

    /// Writes into the image; the former content may come back at a crash.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let (first, count) = blocks(at, bytes.len());
        for block in first..first + count {
            let old = Version { block: self.image[block].clone(), sectors: u8::MAX };
            self.dirty.entry(block).or_default().push(old);
            self.doubtful.remove(&block);
        }
        self.overwrite(at as usize, bytes);
    }

    /// True if a completing write was issued to this file.
    pub fn ends(&mut self, number: u64) -> bool {
        self.in_flight.remove(&number).is_some()
    }

    /// A write has failed: of its sectors, the first `landed` are there; else all, none, a prefix, or any.
    pub fn fail(&mut self, at: u64, len: usize, landed: Option<usize>, rng: &mut Rng) {
        let (first, count) = (at as usize / SECTOR, len / SECTOR);
        let (style, prefix) = (rng.below(4), rng.below(count as u64 + 1) as usize);
        for i in 0..count {
            let is_there = match (landed, style) {
                (Some(landed), _) => i < landed,
                (None, 0) => true,
                (None, 1) => false,
                (None, 2) => i < prefix,
                (None, _) => rng.chance(0.5),
            };
            let (sector, block) = (first + i, (first + i) / SECTORS);
            let Some(versions) = self.dirty.get_mut(&block) else { continue };
            let bit = 1 << (sector % SECTORS);
            let Some(last) = versions.iter().rposition(|v| v.sectors & bit != 0) else { continue };
            self.doubtful.insert(block);
            if !is_there {
                let before = versions[last].sector(sector % SECTORS);
                versions[last].sectors &= !bit;
                versions.retain(|v| v.sectors != 0);
                if versions.is_empty() {
                    self.dirty.remove(&block);
                }
                self.overwrite(sector * SECTOR, &before);
            }
        }
    }

    pub fn make_durable(&mut self, at: u64, len: usize) {
        let (first, count) = blocks(at, len);
        for block in first..first + count {
            self.dirty.remove(&block);
        }
    }

    // ---- syncs

    fn in_flight(&self) -> impl Fn(usize) -> bool + use<> {
        let spans: Vec<(usize, usize)> = self.in_flight.values().copied().collect();
        move |block| spans.iter().any(|&(first, count)| (first..first + count).contains(&block))
    }

    pub fn sync(&mut self) {
        let is_in_flight = self.in_flight();
        let doubtful = &self.doubtful;
        self.dirty.retain(|block, _| is_in_flight(*block) || doubtful.contains(block));
    }

    pub fn fail_sync(&mut self) {
        let is_in_flight = self.in_flight();
        self.doubtful.extend(self.dirty.keys().filter(|block| !is_in_flight(**block)));
    }

    // ---- lengths

    /// Longer with zeros, or shorter; durable.
    pub fn resize(&mut self, len: usize) {
        self.changes();
        let (was, within) = (self.len, len % BLOCK);
        self.image.resize(len.div_ceil(BLOCK), None);
        self.len = len;
        if len < was && within > 0 {
            self.overwrite_tail(within);
        }
        self.dirty.retain(|block, versions| {
            let whole = (len / SECTOR).saturating_sub(block * SECTORS).min(SECTORS);
            versions.iter_mut().for_each(|v| v.sectors &= ((1u16 << whole) - 1) as u8);
            versions.retain(|v| v.sectors != 0);
            !versions.is_empty()
        });
        self.doubtful.retain(|block| block * BLOCK < len);
    }

    /// Zeroes the last block behind the end of the file.
    fn overwrite_tail(&mut self, within: usize) {
        if let Some(Some(last)) = self.image.last_mut() {
            Arc::make_mut(last)[within..].fill(0);
        }
    }

    /// Resizes like [`File::resize`], to a longer or the same length.
    pub fn grow(&mut self, len: usize) {
        self.resize(self.len().max(len));
    }

    /// A block of zeros stands first, durably, and may be written again.
    pub fn begin_anew(&mut self) {
        self.put(0, &[0; BLOCK]);
        self.make_durable(0, BLOCK);
    }

    // ---- the end of a machine or a process

    /// Loses power: each sector that is not durable keeps one of its contents. Returns the number of sectors that did not keep the last
    /// one.
    pub fn crash(&mut self, rng: &mut Rng) -> u64 {
        let mut torn = 0;
        let dirty = std::mem::take(&mut self.dirty);
        let counting = |versions: &[Version]| versions.iter().fold(0, |all, v| all | v.sectors);
        let sectors: u64 = dirty.values().map(|versions| counting(versions).count_ones() as u64).sum();
        let (style, prefix) = (rng.below(4), rng.below(sectors + 1));
        let mut i = 0;
        for (block, versions) in &dirty {
            let counting = counting(versions);
            for sector in (0..SECTORS).filter(|sector| counting & 1 << sector != 0) {
                let keeps = match style {
                    0 => true,
                    1 => false,
                    2 => i < prefix,
                    _ => rng.chance(0.5),
                };
                i += 1;
                if !keeps {
                    let mut older = versions.iter().filter(|v| v.sectors & 1 << sector != 0);
                    let choice = rng.below(older.clone().count() as u64) as usize;
                    let back = older.nth(choice).expect("one of them").sector(sector);
                    self.overwrite(block * BLOCK + sector * SECTOR, &back);
                    torn += 1;
                }
            }
        }
        self.in_flight.clear();
        self.doubtful.clear();
        torn
    }

    pub fn forget_in_flight(&mut self) {
        self.in_flight.clear();
    }

    // ---- damage

    /// Changes stored bytes, in the image and in the contents that a crash would bring back. `change` gets some of them, and the number
    /// of bytes before these.
    pub fn damage(&mut self, at: usize, len: usize, change: impl Fn(&mut [u8], usize)) {
        let mut bytes = self.read(at, len);
        change(&mut bytes, 0);
        self.overwrite(at, &bytes);
        for sector in at / SECTOR..(at + len).div_ceil(SECTOR) {
            let bit = 1 << (sector % SECTORS);
            let versions = self.dirty.get_mut(&(sector / SECTORS));
            let Some(durable) = versions.and_then(|all| all.iter_mut().find(|v| v.sectors & bit != 0)) else { continue };
            let (from, to) = (at.max(sector * SECTOR), (at + len).min((sector + 1) * SECTOR));
            let begin = sector / SECTORS * BLOCK;
            let block = Arc::make_mut(durable.block.get_or_insert_with(|| Arc::new([0; BLOCK])));
            change(&mut block[from - begin..to - begin], from - at);
        }
    }

    /// The device drops a write: the durable content is in the image again.
    pub fn lose(&mut self, at: u64, len: usize) {
        let (first, count) = blocks(at, len);
        for block in first..first + count {
            let versions = self.dirty.remove(&block).unwrap_or_default();
            for sector in 0..SECTORS {
                if let Some(durable) = versions.iter().find(|v| v.sectors & 1 << sector != 0) {
                    self.overwrite(block * BLOCK + sector * SECTOR, &durable.sector(sector));
                }
            }
        }
    }

    /// Bytes stand where they were not written to, durably. Not while anything is in flight.
    pub fn misdirect(&mut self, at: usize, bytes: &[u8]) {
        if self.in_flight.is_empty() {
            self.overwrite(at, bytes);
            self.make_durable(at as u64, bytes.len());
        }
    }
}
