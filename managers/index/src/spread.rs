//! Tables of numbers that are hashes already.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

/// Hashes of blocks are spread already; a table needs both ends of a number to be.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

pub(crate) type Table<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;
