//! Buffers of the device and the shared memory of a block, with a shadow of their cells.
//!
//! A buffer keeps only the pages that were touched, so that pools beyond 2^31 elements cost what is used of them.

use crate::shadow::Cell;

/// What memory holds before anyone has written it.
const UNWRITTEN: u8 = 0xa5;

/// Bytes of a page: more than any access, and a multiple of its alignment.
const PAGE: usize = 16 << 10;

/// Addresses of buffers lie this far apart.
pub(crate) const BUFFER_BITS: u32 = 40;

/// A stretch of memory and its cells.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) bytes: Vec<u8>,
    cells: Vec<Cell>,
    /// Bytes of a cell: the smallest element that two threads may write side by side.
    cell_bytes: usize,
}

impl Region {
    pub(crate) fn new(bytes: usize, cell_bytes: usize) -> Self {
        Self { bytes: vec![UNWRITTEN; bytes], cells: vec![Cell::default(); bytes.div_ceil(cell_bytes)], cell_bytes }
    }

    /// The cells of `count` bytes from `offset` on.
    pub(crate) fn cells(&mut self, offset: usize, count: usize) -> &mut [Cell] {
        let end = (offset + count).div_ceil(self.cell_bytes);
        &mut self.cells[offset / self.cell_bytes..end]
    }
}

/// A buffer of the device.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
    cell_bytes: usize,
    pages: Vec<Option<Box<Region>>>,
}

impl Buffer {
    pub(crate) fn new(name: &str, bytes: u64, cell_bytes: usize, read_only: bool) -> Self {
        let pages = vec![None; bytes.div_ceil(PAGE as u64) as usize];
        Self { name: name.to_owned(), bytes, read_only, cell_bytes, pages }
    }

    /// The page of `offset`, and where in it that is. No access crosses pages, since it is aligned to its size.
    pub(crate) fn page(&mut self, offset: u64) -> (&mut Region, usize) {
        let page = &mut self.pages[(offset / PAGE as u64) as usize];
        let page = page.get_or_insert_with(|| Box::new(Region::new(PAGE, self.cell_bytes)));
        (page, (offset % PAGE as u64) as usize)
    }

    /// Writes as the host does: before the launches that follow.
    pub(crate) fn upload(&mut self, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let (page, start) = self.page(offset);
            let count = data.len().min(PAGE - start);
            page.bytes[start..start + count].copy_from_slice(&data[..count]);
            page.cells(start, count).fill(Cell::initialised());
            data = &data[count..];
            offset += count as u64;
        }
    }

    /// The bytes from `offset` on, and whether all of them were written.
    pub(crate) fn download(&mut self, mut offset: u64, bytes: usize) -> (Vec<u8>, bool) {
        let (mut data, mut written) = (Vec::with_capacity(bytes), true);
        while data.len() < bytes {
            let left = bytes - data.len();
            let (page, start) = self.page(offset);
            let count = left.min(PAGE - start);
            data.extend_from_slice(&page.bytes[start..start + count]);
            written &= page.cells(start, count).iter().all(Cell::is_initialised);
            offset += count as u64;
        }
        (data, written)
    }
}
