//! The planner as WebAssembly: bytes of a question in, text of an answer out, no imports.
//!
//! The page writes a question to memory that it got from [`room`], calls [`answer`], and reads [`answer_length`] bytes
//! where that points. It lasts until the next question.

use std::cell::RefCell;

use cacheplan_web::OpenModels;

/// What lasts from one call to the next. A module has one thread.
#[derive(Default)]
struct Page {
    models: OpenModels,
    question: Vec<u8>,
    answer: String,
}

thread_local! {
    static PAGE: RefCell<Page> = RefCell::default();
}

/// Room for a question of so many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn room(length: usize) -> *mut u8 {
    PAGE.with_borrow_mut(|page| {
        page.question.clear();
        page.question.resize(length, 0);
        page.question.as_mut_ptr()
    })
}

/// Answers the question that was written to the room, and says where.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> *const u8 {
    PAGE.with_borrow_mut(|page| {
        let question = std::mem::take(&mut page.question);
        page.answer = page.models.answer(&question);
        page.answer.as_ptr()
    })
}

/// Bytes of the last answer.
#[unsafe(no_mangle)]
pub extern "C" fn answer_length() -> usize {
    PAGE.with_borrow(|page| page.answer.len())
}
