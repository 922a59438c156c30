//! The zip archive that `torch.export.save` writes: where its members lie. Only members that are stored as they are, which
//! is how torch writes them, can be read.

use cacheplan_files::{Limit, Source};

use super::Refusal;

/// A member of the archive.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// Bytes of its data.
    pub(super) len: u64,
    /// Where its own header begins.
    header: u64,
    stored: bool,
}

/// The end of the central directory, without a comment.
const END: u64 = 22;
/// That, the locator of the larger one, and the larger one itself, where the archive is of more than 4 GiB.
const TAIL: u64 = END + 20 + 56;
/// A comment may stand behind the end; torch writes none.
const COMMENT: u64 = u16::MAX as u64;

/// The members of an archive, in the order of its directory.
pub(super) fn members(source: &Source) -> Result<Vec<Member>, Refusal> {
    let (start, len) = directory(source)?;
    if len > Limit::PT2.bytes {
        return Err(Refusal::archive(format!("its directory of {len} bytes is longer than {}", Limit::PT2.bytes)));
    }
    let bytes = read(source, start, len)?;
    let (mut rest, mut members) = (Fields(&bytes), Vec::new());
    while !rest.0.is_empty() {
        members.push(rest.member()?);
    }
    Ok(members)
}

/// The data of a member, of at most so many bytes as a program's description may have.
pub(super) fn data(source: &Source, member: &Member) -> Result<Vec<u8>, Refusal> {
    if !member.stored {
        return Err(Refusal::at(&member.name, "it is compressed; torch.export.save writes members as they are"));
    }
    if member.len > Limit::PT2.bytes {
        let (found, most) = (member.len, Limit::PT2.bytes);
        return Err(Refusal::at(&member.name, format!("{} of {found} bytes is longer than {most}", Limit::PT2.what)));
    }
    let header = read(source, member.header, 30)?;
    let mut fields = Fields(&header);
    fields.expect(b"PK\x03\x04")?;
    fields.skip(22)?;
    let behind = u64::from(fields.u16()?) + u64::from(fields.u16()?);
    read(source, member.header.saturating_add(30 + behind), member.len)
}

/// Where the central directory begins, and its bytes.
fn directory(source: &Source) -> Result<(u64, u64), Refusal> {
    let tail = source.len().min(TAIL + COMMENT);
    let bytes = read(source, source.len() - tail, tail)?;
    let at = bytes.windows(4).rposition(|word| word == b"PK\x05\x06");
    let at = at.ok_or_else(|| Refusal::archive("it is no zip archive, as torch.export.save writes them"))?;
    let mut end = Fields(&bytes[at..]);
    end.skip(12)?;
    let (len, start) = (end.u32()?, end.u32()?);
    let locator = at.checked_sub(20).and_then(|at| bytes.get(at..));
    match locator {
        Some(locator) if locator.starts_with(b"PK\x06\x07") => {
            let mut locator = Fields(locator);
            locator.skip(8)?;
            let large = read(source, locator.u64()?, 56)?;
            let mut large = Fields(&large);
            large.expect(b"PK\x06\x06")?;
            large.skip(36)?;
            let (len, start) = (large.u64()?, large.u64()?);
            Ok((start, len))
        }
        _ => Ok((u64::from(start), u64::from(len))),
    }
}

fn read(source: &Source, start: u64, len: u64) -> Result<Vec<u8>, Refusal> {
    let end = start.checked_add(len).filter(|&end| end <= source.len());
    let len = usize::try_from(len).ok().filter(|_| end.is_some());
    let len = len.ok_or_else(|| Refusal::archive("it is truncated: its directory leads beyond its end"))?;
    let mut bytes = vec![0; len];
    source.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

/// Numbers that lie behind each other, the lowest byte first.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or_else(|| Refusal::archive("its directory is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, len: usize) -> Result<(), Refusal> {
        self.take(len).map(drop)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        self.number().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.number().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refusal> {
        self.number().map(u64::from_le_bytes)
    }

    fn expect(&mut self, signature: &[u8; 4]) -> Result<(), Refusal> {
        match self.take(4)? == signature {
            true => Ok(()),
            false => Err(Refusal::archive("its directory leads to something else than a member")),
        }
    }

    fn member(&mut self) -> Result<Member, Refusal> {
        self.expect(b"PK\x01\x02")?;
        self.skip(4)?;
        let (flags, method) = (self.u16()?, self.u16()?);
        self.skip(8)?;
        let (packed, len) = (self.u32()?, self.u32()?);
        let (name, extra, comment) = (self.u16()?, self.u16()?, self.u16()?);
        self.skip(8)?;
        let header = self.u32()?;
        let name = String::from_utf8_lossy(self.take(usize::from(name))?).into_owned();
        let (mut extra, mut large) = (Fields(self.take(usize::from(extra))?), Fields(&[]));
        while extra.0.len() >= 4 {
            let (kind, len) = (extra.u16()?, extra.u16()?);
            let field = extra.take(usize::from(len))?;
            if kind == 1 {
                large = Fields(field);
            }
        }
        self.skip(usize::from(comment))?;
        // What does not fit 32 bits stands in the extra field, in this order.
        let mut wide = |narrow: u32| if narrow == u32::MAX { large.u64() } else { Ok(u64::from(narrow)) };
        let (len, packed, header) = (wide(len)?, wide(packed)?, wide(header)?);
        let stored = method == 0 && flags & 1 == 0 && packed == len;
        Ok(Member { name, len, header, stored })
    }
}
