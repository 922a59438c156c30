//! The numbers that a step tells its ops: lists on the host, and where a step's buffer has them on the device.

use std::ops::{Deref, Range};

/// Words of 16 bytes: each list begins at a multiple.
const ALIGNMENT: usize = 4;

/// A list of a step, which ops on the CPU read as the slice that it is and launches where it was uploaded.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a, T> {
    host: &'a [T],
    /// Where the list begins in the buffer of its step; none for a list that is on the host alone.
    word: Option<usize>,
}

impl<'a, T> Numbers<'a, T> {
    /// The numbers on the host.
    pub fn host(&self) -> &'a [T] {
        self.host
    }

    /// Some of them.
    ///
    /// # Panics
    /// Where there are fewer.
    pub fn part(&self, range: Range<usize>) -> Self {
        let before = range.start * size_of::<T>() / size_of::<u32>();
        Self { host: &self.host[range], word: self.word.map(|word| word + before) }
    }

    /// Where the list begins in the buffer of its step, and how many words it takes there.
    pub(crate) fn place(&self) -> (Option<usize>, usize) {
        (self.word, size_of_val(self.host) / size_of::<u32>())
    }

    /// The list `host` that begins at a word of its step's buffer, if the step has a buffer.
    pub(crate) fn at(host: &'a [T], word: Option<usize>) -> Self {
        Self { host, word }
    }
}

impl<T> Deref for Numbers<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.host
    }
}

impl<'a, T> From<&'a [T]> for Numbers<'a, T> {
    fn from(host: &'a [T]) -> Self {
        Self { host, word: None }
    }
}

impl<'a, T> From<&'a Vec<T>> for Numbers<'a, T> {
    fn from(host: &'a Vec<T>) -> Self {
        host.as_slice().into()
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Numbers<'a, T> {
    fn from(host: &'a [T; N]) -> Self {
        host.as_slice().into()
    }
}

/// A number as the words of 32 bits that a device reads.
pub trait Word: Copy {
    /// Appends its words.
    fn write(self, to: &mut Vec<u32>);
}

macro_rules! words {
    ($($type:ty, $number:ident => $words:expr;)*) => {$(
        impl Word for $type {
            fn write(self, to: &mut Vec<u32>) {
                let $number = self;
                to.extend($words);
            }
        }
    )*};
}

words! {
    u32, number => [number];
    i32, number => [number.cast_unsigned()];
    i64, number => [number as u32, (number >> 32) as u32];
    f32, number => [number.to_bits()];
}

/// The lists of a step, in the order in which its buffer holds them.
///
/// Lists of the same lengths, added in the same order, begin at the same words: a recorded step reads what a later one
/// uploads.
#[derive(Debug, Default)]
pub struct StepLists {
    words: Vec<u32>,
}

impl StepLists {
    /// Appends a list.
    pub fn add<'a, T: Word>(&mut self, host: &'a [T]) -> Numbers<'a, T> {
        let word = self.words.len();
        host.iter().for_each(|number| number.write(&mut self.words));
        self.words.resize(self.words.len().next_multiple_of(ALIGNMENT), 0);
        Numbers { host, word: Some(word) }
    }

    /// All of them as a buffer holds them.
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}
