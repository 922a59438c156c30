//! Files of which only slices are at hand: headers are small, and what carries them here cannot be asked while reading.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cacheplan_files::{ReadAt, Source};
use serde::Serialize;

use crate::question::File;

/// The least that is asked for at a time; each next slice is as long as all before it.
const LEAST: u64 = 1 << 18;

/// The most that is kept of all files of a model: what the longest header may take, and a config beside it.
const MOST: u64 = 96 << 20;

/// A slice that reading needed and that was not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Missing {
    /// Which of the files.
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// What reading ran into.
pub(crate) type Ran = Arc<Mutex<Option<Missing>>>;

/// One file's slices.
#[derive(Debug)]
struct Sliced {
    index: usize,
    length: u64,
    slices: Vec<(u64, Vec<u8>)>,
    ran: Ran,
}

/// Sources over the slices; what they lack while they are read is noted in the second.
pub(crate) fn sources(files: &[File], mut bytes: &[u8]) -> Result<(Vec<Source>, Ran), String> {
    if bytes.len() as u64 > MOST {
        return Err(format!("headers of more than {MOST} bytes are not read"));
    }
    let ran = Ran::default();
    let mut sources = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let mut slices = Vec::new();
        for &(offset, length) in &file.slices {
            let within = offset.checked_add(length).is_some_and(|end| end <= file.length);
            let taken = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
            let (slice, rest) = taken.filter(|_| within).ok_or("a slice is not where the question says")?;
            slices.push((offset, slice.to_vec()));
            bytes = rest;
        }
        let ran = Arc::clone(&ran);
        sources.push(Source::new(&file.name, file.length, Sliced { index, length: file.length, slices, ran }));
    }
    Ok((sources, ran))
}

/// What reading lacked.
pub(crate) fn missing(ran: &Ran) -> Option<Missing> {
    *ran.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadAt for Sliced {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= self.length || buffer.is_empty() {
            return Ok(0);
        }
        for (start, slice) in &self.slices {
            let inside = offset.checked_sub(*start).and_then(|skip| slice.get(usize::try_from(skip).ok()?..));
            if let Some(inside) = inside.filter(|inside| !inside.is_empty()) {
                let length = inside.len().min(buffer.len());
                buffer[..length].copy_from_slice(&inside[..length]);
                return Ok(length);
            }
        }
        let known: u64 = self.slices.iter().map(|(_, slice)| slice.len() as u64).sum();
        let length = (buffer.len() as u64).max(known).max(LEAST).min(self.length - offset);
        let missing = Missing { file: self.index, offset, length };
        self.ran.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(missing);
        Err(io::Error::other("this part of the file is not at hand yet"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cacheplan_files::Limit;

    fn file(length: u64, slices: &[(u64, u64)]) -> Vec<File> {
        vec![File { name: "m.gguf".into(), length, slices: slices.to_vec() }]
    }

    #[test]
    fn what_is_at_hand_is_read_across_slices() {
        let (sources, ran) = sources(&file(6, &[(3, 3), (0, 3)]), b"defabc").unwrap();
        assert_eq!(sources[0].text(Limit::CONFIG).unwrap(), "abcdef");
        assert_eq!(missing(&ran), None);
    }

    #[test]
    fn what_is_not_is_asked_for_twice_as_much_each_time() {
        let (sources, ran) = sources(&file(1 << 30, &[(0, 1 << 20)]), &[7; 1 << 20]).unwrap();
        assert!(sources[0].read_exact_at(&mut [0; 8], (1 << 20) - 4).is_err());
        assert_eq!(missing(&ran), Some(Missing { file: 0, offset: 1 << 20, length: 1 << 20 }));
    }

    #[test]
    fn slices_that_are_not_where_they_say_are_refused() {
        for slices in [&[(0, 5)][..], &[(3, 2)], &[(u64::MAX, 2)]] {
            assert!(sources(&file(4, slices), b"abcd").is_err(), "{slices:?}");
        }
    }
}
