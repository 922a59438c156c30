//! What tokens are called, independent of engines and of the sizes of their blocks.

/// A prime: products of its remainders fit 128 bits, and numbers are brought back below it by shifts.
const PRIME: u64 = (1 << 61) - 1;
const BASE: u64 = 0x0b43_95c1_57a4_d2e9;
const CHUNK: usize = 256;

/// The powers of the base, by which tokens of a chunk are multiplied independently of each other.
const POWERS: [u64; CHUNK + 1] = {
    let mut powers = [1; CHUNK + 1];
    let mut at = 1;
    while at <= CHUNK {
        powers[at] = below(powers[at - 1] as u128 * BASE as u128);
        at += 1;
    }
    powers
};

const fn below(number: u128) -> u64 {
    let once = (number & PRIME as u128) + (number >> 61);
    let twice = (once & PRIME as u128) as u64 + (once >> 61) as u64;
    if twice >= PRIME { twice - PRIME } else { twice }
}

/// A polynomial of tokens. Who makes two prompts of one name misleads a router and no engine: it computes again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chain(u64);

/// Set in every name, so that none is zero.
const NAMED: u64 = 1 << 63;

impl Chain {
    /// Goes on after tokens of this name.
    pub(crate) fn after(name: u64) -> Self {
        Self(name & !NAMED)
    }

    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        for chunk in tokens.chunks(CHUNK) {
            let powers = POWERS[..chunk.len()].iter().rev();
            let sum: u128 =
                chunk.iter().zip(powers).map(|(token, power)| (u128::from(*token) + 1) * u128::from(*power)).sum();
            self.0 = below(u128::from(self.0) * u128::from(POWERS[chunk.len()]) + sum);
        }
    }

    pub(crate) fn name(self) -> u64 {
        self.0 | NAMED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_depend_on_how_tokens_are_cut() {
        let tokens: Vec<u32> = (0..1000).map(|at: u32| at.wrapping_mul(2_654_435_761)).collect();
        let name = |size: usize| {
            let mut chain = Chain::default();
            for part in tokens.chunks(size) {
                chain = Chain::after(chain.name());
                chain.extend(part);
            }
            chain.name()
        };
        assert!([2, 7, 16, 300, 1000].into_iter().all(|size| name(size) == name(1)));
        let mut other = Chain::default();
        other.extend(&tokens[..999]);
        assert_ne!(other.name(), name(1));
        assert_ne!(Chain::default().name(), 0);
    }
}
