//! A log in UTF-16, as PowerShell writes one, read as the UTF-8 that says the same.

use std::io::{self, BufRead, Read};

pub(super) struct Utf16<'a> {
    log: &'a mut dyn BufRead,
    is_big: bool,
    /// Half of a unit, and half of a character.
    byte: Option<u8>,
    unit: Option<u16>,
    text: Vec<u8>,
    read: usize,
}

impl<'a> Utf16<'a> {
    /// Such a log, by its mark; the log itself where it has none.
    pub(super) fn of(log: &'a mut dyn BufRead) -> Result<Self, &'a mut dyn BufRead> {
        let is_big = match log.fill_buf() {
            Ok([0xff, 0xfe, ..]) => Some(false),
            Ok([0xfe, 0xff, ..]) => Some(true),
            _ => None,
        };
        let Some(is_big) = is_big else { return Err(log) };
        log.consume(2);
        Ok(Self { log, is_big, byte: None, unit: None, text: Vec::new(), read: 0 })
    }
}

fn take(text: &mut Vec<u8>, before: &mut Option<u16>, unit: u16) {
    let units = before.take().into_iter().chain([unit]);
    if units.clone().count() == 1 && (0xd800..0xdc00).contains(&unit) {
        *before = Some(unit);
        return;
    }
    for char in char::decode_utf16(units) {
        let char = char.unwrap_or(char::REPLACEMENT_CHARACTER);
        text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

impl BufRead for Utf16<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.read == self.text.len() {
            (self.read, self.text) = (0, Vec::new());
            let chunk = self.log.fill_buf()?;
            if chunk.is_empty() {
                break;
            }
            for byte in chunk {
                match self.byte.take() {
                    None => self.byte = Some(*byte),
                    Some(first) if self.is_big => {
                        take(&mut self.text, &mut self.unit, u16::from_be_bytes([first, *byte]));
                    }
                    Some(first) => take(&mut self.text, &mut self.unit, u16::from_le_bytes([first, *byte])),
                }
            }
            let all = chunk.len();
            self.log.consume(all);
        }
        Ok(&self.text[self.read..])
    }

    fn consume(&mut self, bytes: usize) {
        self.read += bytes;
    }
}

impl Read for Utf16<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    fn a_text_in_utf16_is_what_it_says(#[values(false, true)] is_big: bool, #[values(1, 2, 3, 64)] at_once: usize) {
        let said = "KV cache: 1 GiB \u{1f680}\r\nüß\n";
        let units = std::iter::once(0xfeff).chain(said.encode_utf16());
        let bytes: Vec<u8> =
            units.flat_map(|unit: u16| if is_big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect();
        let mut log = io::BufReader::with_capacity(at_once.max(2), &bytes[..]);
        let mut read = String::new();
        Utf16::of(&mut log).ok().unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, said);
    }

    #[test]
    fn a_text_without_a_mark_is_left_as_it_is() {
        assert!(Utf16::of(&mut &b"INFO a"[..]).is_err());
    }
}
