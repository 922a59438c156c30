//! Files that are nearly what a reader expects.

/// xorshift64*: the same files for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit.max(1)
    }

    pub(crate) fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// Pieces that parsers and sums stumble over; the first six are numbers.
const WORDS: [&[u8]; 26] = [
    b"0",
    b"1",
    b"-1",
    b"2147483647",
    b"18446744073709551615",
    b"99999999999999999999",
    b"20000",
    b"1e300",
    b"Infinity",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"\"\"",
    b"\"auto\"",
    b"\"a\":",
    b"a.b.c = 1\n",
    b"[[a]]\n",
    b"[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
    b"\x1b[2J",
    "\u{2028}\u{202e}".as_bytes(),
    b"\n",
    &[0xff; 8],
    &[0x80; 10],
    &[0; 8],
];

/// One of the seeds with one to three changes. Few grow to `most` bytes, where what a reader does per byte is felt.
pub(crate) fn mutated(seeds: &[Vec<u8>], most: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = random.of(seeds).clone();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        let to = (at + random.below(40)).min(bytes.len());
        match random.below(8) {
            0 => drop(bytes.drain(at..to)),
            1 => bytes.truncate(at),
            2 => bytes[at] = random.below(256) as u8,
            3 => bytes[at] ^= 1 << random.below(8),
            4 => {
                let piece = bytes[at..to].to_vec();
                let other = random.below(bytes.len());
                bytes.splice(other..other, piece);
            }
            5 => drop(bytes.splice(at..at, random.of(&WORDS).iter().copied())),
            6 => another_number(&mut bytes, at, random),
            _ => {
                let other = random.of(seeds);
                let from = random.below(other.len());
                let until = (from + random.below(200)).min(other.len());
                bytes.splice(at..to, other[from..until].iter().copied());
            }
        }
    }
    if random.below(100) == 0 && !bytes.is_empty() {
        grow(&mut bytes, most, random);
    }
    bytes
}

/// A number that is another.
fn another_number(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    if let Some(start) = bytes[at..].iter().position(is_digit).map(|by| at + by) {
        let end = bytes[start..].iter().position(|byte| !is_digit(byte)).map_or(bytes.len(), |by| start + by);
        bytes.splice(start..end, random.of(&WORDS[..6]).iter().copied());
    }
}

/// Repeats a piece, of a separator's length or of a list's, until the file is longer than any of its kind.
fn grow(bytes: &mut Vec<u8>, most: usize, random: &mut Random) {
    let at = random.below(bytes.len());
    let longest = *random.of(&[2, 8, 64, 4096]);
    let piece = bytes[at..(at + 1 + random.below(longest)).min(bytes.len())].to_vec();
    let length = most >> random.below(8);
    let times = length.saturating_sub(bytes.len()) / piece.len();
    bytes.splice(at..at, piece.repeat(times));
}
