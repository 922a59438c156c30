//! From the last tokens to rows of a table of n-grams: hashes by multipliers that follow from a seed, modulo primes.

/// The tokens before each token, and how n-grams of them are hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hashes {
    /// One for each place of an n-gram, the last token's first.
    multipliers: Vec<i64>,
    /// For each hash of bigrams, then of trigrams, and so on: its prime, and the row at which its part of the table begins.
    heads: Vec<(i64, i64)>,
    heads_per_ngram: usize,
    /// What ends texts: no n-gram reaches over it.
    end: u32,
}

/// What the hashes of a layer follow from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashRules {
    pub(crate) vocab_size: u64,
    /// The longest n-gram.
    pub(crate) ngram: usize,
    pub(crate) heads_per_ngram: usize,
    /// Each hash has a prime of its own from here on.
    pub(crate) least_prime: u64,
    pub(crate) seed: u64,
    pub(crate) end: u32,
    /// The layer's number among those that have n-grams.
    pub(crate) nth: usize,
}

impl Hashes {
    pub(super) fn new(rules: HashRules) -> Self {
        let HashRules { vocab_size, ngram, heads_per_ngram, least_prime, seed, end, nth } = rules;
        let count = ngram.saturating_sub(1) * heads_per_ngram;
        let primes = (least_prime..).filter(|number| is_prime(*number)).skip(nth * count).take(count);
        let heads = primes.scan(0, |first, prime| {
            let head = (prime as i64, *first);
            *first += prime as i64;
            Some(head)
        });
        let half = ((i64::MAX as u64 / vocab_size.max(1)) / 2).max(1);
        let base = seed.wrapping_add(10007 * nth as u64);
        let multiplier = |place: u64| {
            let mixed = split_mix(base.wrapping_add(GAMMA.wrapping_mul(place + 1)));
            (2 * (mixed % half) + 1) as i64
        };
        Self { multipliers: (0..ngram as u64).map(multiplier).collect(), heads: heads.collect(), heads_per_ngram, end }
    }

    /// How many tokens before a token it depends on.
    pub(super) fn context(&self) -> usize {
        self.multipliers.len().saturating_sub(1)
    }

    /// Hashes of a token.
    pub(super) fn count(&self) -> usize {
        self.heads.len()
    }

    /// Rows that the table has at least.
    pub(super) fn rows(&self) -> usize {
        self.heads.last().map_or(0, |(prime, first)| (first + prime) as usize)
    }

    /// What ends texts, which also stands before the first token.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    /// The table's rows of the last token of `tokens`, which has [`context`](Self::context) tokens before it.
    pub(super) fn of<'a>(&'a self, tokens: &'a [u32]) -> impl Iterator<Item = usize> + 'a {
        let mut ended = false;
        let seen: Vec<i64> = (0..self.multipliers.len())
            .map(|back| {
                let token = tokens.len().checked_sub(back + 1).map_or(self.end, |at| tokens[at]);
                // The token itself may be one that ends a text.
                ended |= back > 0 && token == self.end;
                i64::from(if ended { self.end } else { token })
            })
            .collect();
        let mixed = move |ngram: usize| {
            let products = seen.iter().zip(&self.multipliers).take(ngram);
            products.map(|(token, multiplier)| token.wrapping_mul(*multiplier)).fold(0, |mixed, part| mixed ^ part)
        };
        self.heads.iter().enumerate().map(move |(head, (prime, first))| {
            (mixed(2 + head / self.heads_per_ngram).rem_euclid(*prime) + first) as usize
        })
    }
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's next number behind a state.
fn split_mix(state: u64) -> u64 {
    let x = state.wrapping_add(GAMMA);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn is_prime(number: u64) -> bool {
    number == 2
        || number > 2
            && !number.is_multiple_of(2)
            && (3..)
                .step_by(2)
                .take_while(|divisor| divisor * divisor <= number)
                .all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(nth: usize) -> Hashes {
        let (vocab_size, ngram, heads_per_ngram) = (96, 3, 2);
        Hashes::new(HashRules { vocab_size, ngram, heads_per_ngram, least_prime: 100, seed: 1234, end: 1, nth })
    }

    #[test]
    fn every_hash_of_every_layer_has_a_prime_of_its_own() {
        let primes = |nth: usize| hashes(nth).heads.into_iter().map(|(prime, _)| prime).collect::<Vec<_>>();
        assert_eq!([primes(0), primes(1)].concat(), [101, 103, 107, 109, 113, 127, 131, 137]);
        assert_eq!(hashes(0).rows(), 101 + 103 + 107 + 109);
        assert_ne!(hashes(0).multipliers, hashes(1).multipliers);
    }

    #[test]
    fn no_n_gram_reaches_over_the_end_of_a_text() {
        let hashes = hashes(0);
        let of = |tokens: [u32; 3]| hashes.of(&tokens).collect::<Vec<_>>();
        assert_eq!(of([5, 1, 7]), of([9, 1, 7]));
        assert_ne!(of([5, 2, 7]), of([9, 2, 7]));
        assert_eq!(of([5, 2, 7])[..2], of([9, 2, 7])[..2], "bigrams");
        assert_eq!(of([1, 2, 7]), hashes.of(&[2, 7]).collect::<Vec<_>>(), "before the first token a text has ended");
    }
}
