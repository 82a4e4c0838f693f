//! Values of one kind under small numbers. They stand in chunks: growing moves nothing, and a chunk without a value gives its
//! memory back.

/// Values of one chunk.
const CHUNK: usize = 32;
const CHUNK_BITS: u32 = CHUNK.trailing_zeros();
/// Empty chunks that keep their memory, so that one value that comes and goes allocates nothing.
const EMPTY_KEPT: u32 = 2;

#[derive(Debug)]
pub struct Arena<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks that have memory and a free place.
    roomy: Vec<u32>,
    /// Chunks without memory.
    vacant: Vec<u32>,
    empty_count: u32,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    values: Option<Box<[T; CHUNK]>>,
    /// Bit per free place.
    free: u32,
    /// Index of the chunk in `Arena::roomy`.
    nth: u32,
}

const _: () = assert!(CHUNK == u32::BITS as usize);

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Arena { chunks: vec![], roomy: vec![], vacant: vec![], empty_count: 0, len: 0 }
    }
}

impl<T: Copy> Arena<T> {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, number: u32) -> &T {
        let chunk = &self.chunks[number as usize >> CHUNK_BITS];
        &chunk.values.as_ref().expect("a value's chunk has memory")[number as usize % CHUNK]
    }

    pub fn get_mut(&mut self, number: u32) -> &mut T {
        let chunk = &mut self.chunks[number as usize >> CHUNK_BITS];
        &mut chunk.values.as_mut().expect("a value's chunk has memory")[number as usize % CHUNK]
    }

    pub fn insert(&mut self, value: T) -> u32 {
        let at = match self.roomy.last() {
            Some(&at) => at,
            None => self.furnish(value),
        };
        let chunk = &mut self.chunks[at as usize];
        let place = chunk.free.trailing_zeros();
        self.empty_count -= (chunk.free == u32::MAX) as u32;
        chunk.free &= chunk.free - 1;
        if chunk.free == 0 {
            self.roomy.pop();
        }
        chunk.values.as_mut().expect("a roomy chunk has memory")[place as usize] = value;
        self.len += 1;
        at << CHUNK_BITS | place
    }

    /// Gives a chunk memory, and says which.
    fn furnish(&mut self, value: T) -> u32 {
        let at = self.vacant.pop().unwrap_or_else(|| {
            let at = u32::try_from(self.chunks.len()).ok().filter(|&at| at < u32::MAX >> CHUNK_BITS);
            self.chunks.push(Chunk { values: None, free: u32::MAX, nth: 0 });
            at.expect("a channel has fewer than 2^32 - 64 open messages")
        });
        let chunk = &mut self.chunks[at as usize];
        (chunk.values, chunk.nth) = (Some(Box::new([value; CHUNK])), self.roomy.len() as u32);
        self.roomy.push(at);
        self.empty_count += 1;
        at
    }

    pub fn remove(&mut self, number: u32) -> T {
        let at = number >> CHUNK_BITS;
        let chunk = &mut self.chunks[at as usize];
        let place = number % CHUNK as u32;
        assert!(chunk.free >> place & 1 == 0, "a value is removed once");
        let value = chunk.values.as_ref().expect("a value's chunk has memory")[place as usize];
        if chunk.free == 0 {
            chunk.nth = self.roomy.len() as u32;
            self.roomy.push(at);
        }
        chunk.free |= 1 << place;
        self.len -= 1;
        if chunk.free == u32::MAX {
            self.empty_count += 1;
            if self.empty_count > EMPTY_KEPT {
                self.vacate(at);
            }
        }
        value
    }

    /// Takes an empty chunk's memory.
    fn vacate(&mut self, at: u32) {
        self.empty_count -= 1;
        let chunk = &mut self.chunks[at as usize];
        chunk.values = None;
        let nth = chunk.nth as usize;
        self.roomy.swap_remove(nth);
        if let Some(&moved) = self.roomy.get(nth) {
            self.chunks[moved as usize].nth = nth as u32;
        }
        self.vacant.push(at);
        if self.roomy.len() == EMPTY_KEPT as usize && self.len == 0 {
            // The peak is over: free the memory.
            *self = Arena::default();
        }
    }

    /// The next value needs no more memory.
    pub fn has_room(&self) -> bool {
        !self.roomy.is_empty()
    }

    pub fn allocated_bytes(&self) -> usize {
        let furnished = self.chunks.len() - self.vacant.len();
        furnished * CHUNK * size_of::<T>()
            + self.chunks.capacity() * size_of::<Chunk<T>>()
            + (self.roomy.capacity() + self.vacant.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn values_stay_under_their_numbers() {
        let (mut arena, mut known, mut rng) = (Arena::default(), BTreeMap::new(), Rng::new(1));
        for round in 0..20_000u64 {
            // It grows, shrinks, and grows again.
            let grows = if round / 4000 % 2 == 0 { 70 } else { 30 };
            if rng.below(100) < grows || known.is_empty() {
                assert!(known.insert(arena.insert(round), round).is_none(), "a number is given once");
            } else {
                let nth = rng.below(known.len() as u64) as usize;
                let (&number, &value) = known.iter().nth(nth).expect("there are so many");
                *arena.get_mut(number) += 1;
                assert_eq!(arena.remove(number), value + 1);
                known.remove(&number);
            }
            assert!(known.iter().take(3).all(|(&number, value)| arena.get(number) == value));
            assert_eq!(arena.is_empty(), known.is_empty());
        }
        assert!(known.iter().all(|(&number, value)| arena.get(number) == value));
    }

    #[test]
    fn memory_goes_back_chunk_by_chunk() {
        let mut arena = Arena::default();
        let numbers: Vec<u32> = (0..100_000u64).map(|n| arena.insert(n)).collect();
        let full = arena.allocated_bytes();
        assert!(full < 100_000 * 9, "{full}");
        numbers[..50_000].iter().for_each(|&number| _ = arena.remove(number));
        let half = arena.allocated_bytes();
        assert!(half < full * 6 / 10, "{half} of {full}");
        assert!(arena.has_room());
        numbers[50_000..].iter().for_each(|&number| _ = arena.remove(number));
        assert!(arena.is_empty() && arena.allocated_bytes() < 1024, "{}", arena.allocated_bytes());
    }
}
