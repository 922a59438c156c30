//! A script cut into its statements.

use super::lex::{Broken, Cursor};
use super::word::{Piece, Word};

/// The word in front of `((...))`, whose text is another.
pub(super) const ARITHMETIC: &str = "((";

/// How a statement follows the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    Next,
    And,
    Or,
    Pipe,
    /// Behind `)`, where the body of a function may stand.
    Parenthesis,
}

/// A simple command, or a part of a compound one.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) line: usize,
    pub(super) join: Join,
    pub(super) words: Vec<Word>,
    /// Whether the script does not wait for it, or hands its output on: what it sets is lost.
    pub(super) is_apart: bool,
    /// Subshells that end in front of it, and then those that begin.
    pub(super) leaves: usize,
    pub(super) enters: usize,
    /// The file that its output goes to.
    pub(super) into: Option<Word>,
    /// Behind what is there.
    pub(super) appends: bool,
    /// The document that it reads, as one word.
    pub(super) document: Option<Word>,
}

impl Statement {
    fn new(line: usize, join: Join) -> Self {
        Self {
            line,
            join,
            words: Vec::new(),
            is_apart: join == Join::Pipe,
            leaves: 0,
            enters: 0,
            into: None,
            appends: false,
            document: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.words.is_empty() && self.into.is_none() && self.document.is_none()
    }
}

/// Where a document begins below the line that reads it.
struct Pending {
    /// Of the statements that are finished; the one under way is the next.
    statement: usize,
    end: String,
    /// Variables are not expanded.
    literal: bool,
    strips_tabs: bool,
}

/// The statements of a script, or the line and the reason why it has none.
pub(super) fn statements(script: &str, line: usize) -> Result<Vec<Statement>, (usize, Broken)> {
    let mut cursor = Cursor::new(script, line);
    let mut reader = Statements { done: Vec::new(), now: Statement::new(line, Join::Next), pending: Vec::new() };
    while cursor.peek().is_some() {
        let line = cursor.line;
        reader.step(&mut cursor).map_err(|broken| (line, broken))?;
    }
    reader.end(cursor.line, Join::Next);
    set_apart(&mut reader.done);
    Ok(reader.done)
}

/// Compound commands that the script does not wait for, or that hand on what they print or are handed it, run in subshells.
fn set_apart(statements: &mut [Statement]) {
    let mut open: Vec<usize> = Vec::new();
    for at in 0..statements.len() {
        let words: Vec<&str> = statements[at].words.iter().map_while(Word::bare).collect();
        let mut closed = None;
        for word in words {
            match word {
                "then" | "else" | "elif" | "do" | "!" => {}
                "if" | "while" | "until" | "{" => open.push(at),
                "for" | "select" | "case" => {
                    open.push(at);
                    break;
                }
                "fi" | "done" | "esac" | "}" => closed = open.pop(),
                _ => break,
            }
        }
        let Some(begin) = closed.filter(|begin| statements[*begin].is_apart || statements[at].is_apart) else {
            continue;
        };
        if at + 1 < statements.len() {
            statements[begin].enters += 1;
            statements[at + 1].leaves += 1;
        }
    }
}

struct Statements {
    done: Vec<Statement>,
    now: Statement,
    pending: Vec<Pending>,
}

impl Statements {
    fn step(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Broken> {
        match cursor.peek().unwrap_or('\n') {
            ' ' | '\t' | '\r' => {
                cursor.bump();
            }
            '\\' if cursor.takes("\\\n") || cursor.takes("\\\r\n") => {}
            '#' => {
                let end = cursor.rest.find('\n').unwrap_or(cursor.rest.len());
                cursor.skip(end);
            }
            '\n' => {
                cursor.bump();
                self.documents(cursor)?;
                self.end(cursor.line, Join::Next);
            }
            ';' => {
                cursor.bump();
                self.end(cursor.line, Join::Next);
            }
            '(' => {
                self.end(cursor.line, Join::Next);
                match cursor.arithmetic() {
                    Some(text) => self.now.words.extend([Word::of(ARITHMETIC), Word::of(text)]),
                    None => {
                        cursor.bump();
                        self.now.enters += 1;
                    }
                }
            }
            ')' => {
                cursor.bump();
                self.end(cursor.line, Join::Parenthesis);
                // One without a command is as if it were not there.
                match self.now.enters {
                    0 => self.now.leaves += 1,
                    _ => self.now.enters -= 1,
                }
            }
            '&' if cursor.takes("&&") => self.end(cursor.line, Join::And),
            '&' if cursor.rest.starts_with("&>") => {
                cursor.bump();
                self.redirect(cursor)?;
            }
            '&' => {
                cursor.bump();
                self.now.is_apart = true;
                self.end(cursor.line, Join::Next);
            }
            '|' if cursor.takes("||") => self.end(cursor.line, Join::Or),
            '|' => {
                cursor.bump();
                cursor.takes("&");
                self.now.is_apart = true;
                self.end(cursor.line, Join::Pipe);
            }
            '<' | '>' if cursor.placeholder().is_none() => self.redirect(cursor)?,
            _ => {
                let line = cursor.line;
                let word = cursor.word()?;
                let descriptor = word.bare().is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                if descriptor && matches!(cursor.peek(), Some('<' | '>')) {
                    return self.redirect(cursor);
                }
                if self.now.is_empty() {
                    self.now.line = line;
                }
                self.now.words.push(word);
            }
        }
        Ok(())
    }

    fn end(&mut self, line: usize, join: Join) {
        if self.now.is_empty() {
            // A line may end behind `&&`.
            if join != Join::Next {
                self.now.join = join;
            }
            self.now.is_apart = join == Join::Pipe;
            return;
        }
        let finished = std::mem::replace(&mut self.now, Statement::new(line, join));
        self.done.push(finished);
    }

    /// `> file`, `2>&1`, `<<END`.
    fn redirect(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Broken> {
        if cursor.takes("<<<") {
            blanks(cursor);
            cursor.word()?;
            return Ok(());
        }
        if cursor.takes("<<") {
            let strips_tabs = cursor.takes("-");
            blanks(cursor);
            let (before, word) = (cursor.rest, cursor.word()?);
            let raw = &before[..before.len() - cursor.rest.len()];
            let end: String = raw.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
            let statement = self.done.len();
            self.pending.push(Pending { statement, end, literal: word.quoted, strips_tabs });
            return Ok(());
        }
        let writes = cursor.bump() == Some('>');
        let appends = cursor.peek() == Some('>');
        for sign in [">", "&", "|"] {
            cursor.takes(sign);
        }
        if cursor.peek() == Some('(') {
            return Err("a process substitution (`<(`, `>(`) is not read; write a file");
        }
        blanks(cursor);
        let target = cursor.word()?;
        if writes {
            (self.now.into, self.now.appends) = (Some(target), appends);
        }
        Ok(())
    }

    /// The documents that the lines behind have for those statements.
    fn documents(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Broken> {
        for pending in std::mem::take(&mut self.pending) {
            let mut text = String::new();
            loop {
                if cursor.rest.is_empty() {
                    return Err("a document behind `<<` has no end");
                }
                let length = cursor.rest.find('\n').map_or(cursor.rest.len(), |end| end + 1);
                let line = cursor.skip(length);
                let line = if pending.strips_tabs { line.trim_start_matches('\t') } else { line };
                if line.trim_end_matches(['\n', '\r']) == pending.end {
                    break;
                }
                text += line;
            }
            let mut word = Word::default();
            if pending.literal {
                word.pieces.push(Piece::Text(text));
            } else {
                let mut inside = Cursor { rest: &text, line: 0, parts: cursor.parts };
                inside.quoted(None, &mut word)?;
                cursor.parts = inside.parts;
            }
            let statement = self.done.get_mut(pending.statement).unwrap_or(&mut self.now);
            statement.document = Some(word);
        }
        Ok(())
    }
}

fn blanks(cursor: &mut Cursor<'_>) {
    while matches!(cursor.peek(), Some(' ' | '\t')) {
        cursor.bump();
    }
}
