//! Colours of tables, on a terminal only.

use std::env::var_os;
use std::io::{IsTerminal, stdout};

use cacheplan::files::Shown;

use crate::failure::{Failure, print, print_raw};

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Prints a table; on a terminal its headings stand out, and what holds from what does not, unless `NO_COLOR` is set.
pub(crate) fn print_table(text: &str) -> Result<(), Failure> {
    let refused = var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if refused || var_os("TERM").is_some_and(|term| term == "dumb") || !stdout().is_terminal() {
        return print(text);
    }
    // What would steer the terminal is escaped before anything of ours does.
    print_raw(&Shown::printable(text).split_inclusive('\n').map(painted).collect::<String>())
}

/// A line with its first words in colour, where they say what the line is.
fn painted(line: &str) -> String {
    let words = line.split_inclusive(' ').take_while(|word| is_heading(word.trim())).collect::<String>();
    let (word, colour) = match words.trim_end() {
        "" => match line.split(' ').next() {
            Some("yes") => ("yes", GREEN),
            Some("no") => ("no", RED),
            _ => return line.to_owned(),
        },
        heading => (heading, BOLD),
    };
    format!("{colour}{word}{PLAIN}{}", &line[word.len()..])
}

/// Headings are in capitals: `IN ALL`.
fn is_heading(word: &str) -> bool {
    word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("POOLS\n", "\x1b[1mPOOLS\x1b[0m\n")]
    #[case("PLANNED BESIDE ACTUAL\n", "\x1b[1mPLANNED BESIDE ACTUAL\x1b[0m\n")]
    #[case("MODEL    llama\n", "\x1b[1mMODEL\x1b[0m    llama\n")]
    #[case("IN ALL    5 sequences\n", "\x1b[1mIN ALL\x1b[0m    5 sequences\n")]
    #[case("yes  1 x l4\n", "\x1b[32myes\x1b[0m  1 x l4\n")]
    #[case("no   1 x l4\n", "\x1b[31mno\x1b[0m   1 x l4\n")]
    #[case("kv_paged.0  9\n", "kv_paged.0  9\n")]
    #[case("      layers 0-3\n", "      layers 0-3\n")]
    #[case("\n", "\n")]
    fn what_a_line_is_stands_out(#[case] line: &str, #[case] expected: &str) {
        assert_eq!(painted(line), expected);
    }
}
