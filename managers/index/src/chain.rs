//! What tokens are called, independent of engines and of the sizes of their blocks.

/// A running hash of tokens. Who makes two prompts of one name misleads a router and no engine: it computes again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chain(u64);

impl Chain {
    /// Goes on after tokens of this name.
    pub(crate) fn after(name: u64) -> Self {
        Self(name)
    }

    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        for token in tokens {
            let product = u128::from(self.0 ^ 0x2d35_8dcc_aa6c_78a5)
                * u128::from((u64::from(*token) << 1 | 1) ^ 0x8bb8_4b93_962e_acc9);
            self.0 = (product as u64) ^ (product >> 64) as u64;
        }
    }

    /// Never zero, which is no name.
    pub(crate) fn name(&mut self) -> u64 {
        if self.0 == 0 {
            self.0 = 1;
        }
        self.0
    }
}
