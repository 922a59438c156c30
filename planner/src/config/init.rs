//! A budget file with every key, commented out, so that it says what the defaults are and changes none.

use super::keys::{BudgetKey, REQUIRED, SECTIONS};

/// A commented budget file that reads as the default budget.
pub(super) fn commented_budget() -> String {
    let mut text = String::from(
        "# What memory there is, what limits hold, and how caches are stored. Every key is optional.\n\
         # A flag of the command line stands above an environment variable (CACHEPLAN__MEMORY__BYTES=24GiB),\n\
         # that above this file, this file above the defaults. Sizes are bytes or texts such as \"24GiB\".\n",
    );
    for key in in_section("") {
        text.push_str(&lines(key));
    }
    for (section, help) in SECTIONS {
        text.push_str(&format!("\n# {help}\n#[{section}]\n"));
        for key in in_section(section) {
            text.push_str(&lines(key));
        }
    }
    text
}

fn in_section(section: &str) -> impl Iterator<Item = &'static BudgetKey> {
    BudgetKey::all().iter().filter(move |key| key.split().0 == section)
}

/// The key with its help and default, `# ` before words and `#` before what could be uncommented.
fn lines(key: &BudgetKey) -> String {
    let default = if REQUIRED.contains(&key.path) {
        "Needed in this section.".into()
    } else {
        format!("Default: {}.", key.default)
    };
    format!("\n# {} {default}\n#{} = {}\n", key.help, key.split().1, key.example.replace('\'', "\""))
}
