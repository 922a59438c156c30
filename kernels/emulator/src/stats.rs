//! What a run would cost the memory of a GPU, counted from addresses.

/// Counts over all blocks of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions, each counted once for a warp.
    pub warp_instructions: u64,
    /// Bytes that warps asked for, each request's shared bytes counted once.
    pub loaded_bytes: u64,
    /// Bytes that warps stored.
    pub stored_bytes: u64,
    /// 32-byte sectors of global memory that requests touched.
    pub sectors: u64,
    /// The fewest sectors that could have held the bytes of those requests.
    pub ideal_sectors: u64,
    /// Requests to shared memory, of which one has at most 128 bytes.
    pub shared_requests: u64,
    /// Passes that these take over the 32 banks; as many as requests where no two lanes are in each other's way.
    pub shared_passes: u64,
    /// Barriers of blocks.
    pub barriers: u64,
    /// The most bytes of global memory that one warp had asked for and not yet used.
    pub bytes_in_flight: u64,
}

impl Stats {
    /// Bytes that moved between the processors and memory.
    pub fn moved_bytes(&self) -> u64 {
        self.loaded_bytes + self.stored_bytes
    }

    /// Instructions of a warp for each KiB that moved.
    pub fn warp_instructions_per_kib(&self) -> f64 {
        self.warp_instructions as f64 / (self.moved_bytes() as f64 / 1024.0)
    }

    /// Sectors over the fewest possible: 1 where every request is whole and aligned.
    pub fn sector_ratio(&self) -> f64 {
        self.sectors as f64 / self.ideal_sectors as f64
    }

    /// Notes a request of a warp: the addresses of its lanes, each for `bytes` bytes.
    pub(crate) fn global(&mut self, addresses: &[u64], bytes: usize, stores: bool) {
        let bytes = bytes as u64;
        let count = |mut units: Vec<u64>| {
            units.sort_unstable();
            units.dedup();
            units.len() as u64
        };
        self.sectors += count(addresses.iter().flat_map(|at| at / 32..=(at + bytes - 1) / 32).collect());
        let moved = count(addresses.iter().map(|at| at / bytes).collect()) * bytes;
        self.ideal_sectors += moved.div_ceil(32);
        if stores {
            self.stored_bytes += moved;
        } else {
            self.loaded_bytes += moved;
        }
    }

    /// Notes a request to shared memory. Wide accesses go in halves and quarters of a warp.
    pub(crate) fn shared(&mut self, offsets: &[u64], bytes: usize) {
        let lanes_at_once = 128 / bytes.clamp(4, 16);
        for part in offsets.chunks(lanes_at_once) {
            let mut words: Vec<u64> = part.iter().flat_map(|at| at / 4..=(at + bytes as u64 - 1) / 4).collect();
            words.sort_unstable();
            words.dedup();
            let mut banks = [0u64; 32];
            words.iter().for_each(|word| banks[(word % 32) as usize] += 1);
            self.shared_requests += 1;
            self.shared_passes += banks.into_iter().max().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::whole(0, 4, 4)]
    #[case::shifted_by_an_element(4, 4, 5)]
    #[case::every_other_element(0, 8, 8)]
    #[case::one_word_for_all(0, 0, 1)]
    fn sectors_follow_addresses(#[case] start: u64, #[case] stride: u64, #[case] sectors: u64) {
        let mut stats = Stats::default();
        stats.global(&(0..32).map(|lane| start + lane * stride).collect::<Vec<_>>(), 4, false);
        assert_eq!(stats.sectors, sectors);
    }

    #[rstest]
    #[case::words(4, 4, 1)]
    #[case::the_same_word(0, 4, 1)]
    #[case::two_in_a_bank(8, 4, 2)]
    #[case::all_in_a_bank(128, 4, 32)]
    #[case::sixteen_bytes(16, 16, 1)]
    fn passes_follow_banks(#[case] stride: u64, #[case] bytes: usize, #[case] passes_of_a_request: u64) {
        let mut stats = Stats::default();
        stats.shared(&(0..32).map(|lane| lane * stride).collect::<Vec<_>>(), bytes);
        assert_eq!(stats.shared_passes, stats.shared_requests * passes_of_a_request);
    }
}
