//! What tokens are called, independent of engines and of the sizes of their blocks.

/// Odd, so that no token is lost, and with powers that repeat only after 2^61 of them.
const BASE: u64 = 0x0b43_95c1_57a4_d2ed;

/// As many tokens as are multiplied independently of each other.
const GROUP: usize = 16;

/// The base to the power of how many tokens of a group follow.
const POWERS: [u64; GROUP] = {
    let mut powers = [1_u64; GROUP];
    let mut at = GROUP - 1;
    while at > 0 {
        powers[at - 1] = powers[at].wrapping_mul(BASE);
        at -= 1;
    }
    powers
};

/// A polynomial of tokens, of which 63 bits count. Who makes two prompts of one name misleads a router and no engine: it
/// computes again.
#[derive(Clone, Copy)]
pub(crate) struct Chain(u64);

/// Set in every name, so that none is zero.
const NAMED: u64 = 1 << 63;

impl Default for Chain {
    /// Of no tokens: not zero, so that zeros at the beginning count.
    fn default() -> Self {
        Self(1)
    }
}

impl Chain {
    /// Goes on after tokens of this name.
    pub(crate) fn after(name: u64) -> Self {
        Self(name)
    }

    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        let (groups, rest) = tokens.as_chunks::<GROUP>();
        for group in groups {
            let before = self.0.wrapping_mul(POWERS[0]).wrapping_mul(BASE);
            self.0 = group
                .iter()
                .zip(POWERS)
                .fold(before, |sum, (token, power)| sum.wrapping_add(u64::from(*token).wrapping_mul(power)));
        }
        for token in rest {
            self.0 = self.0.wrapping_mul(BASE).wrapping_add(u64::from(*token));
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
    }

    #[test]
    fn other_tokens_have_other_names() {
        let name = |tokens: &[u32]| {
            let mut chain = Chain::default();
            chain.extend(tokens);
            chain.name()
        };
        // Zeros, what only their number or place tells apart, and the greatest token.
        let texts: [&[u32]; 8] = [&[], &[0], &[0, 0], &[1], &[0, 1], &[1, 0], &[u32::MAX], &[0; 17]];
        let names: std::collections::HashSet<u64> = texts.into_iter().map(name).collect();
        assert_eq!(names.len(), texts.len());
        assert!(!names.contains(&0));
    }
}
