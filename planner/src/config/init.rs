//! A budget file with every key, commented out, so that it says what the defaults are and changes none.

use crate::budget::Budget;
use crate::budget::key::BudgetKey;

/// A commented budget file that reads as the default budget.
pub(super) fn commented_budget() -> String {
    let mut text = String::from(
        "# What memory there is, what limits hold, and how caches are stored. Every key is optional.\n\
         # A flag of the command line stands above an environment variable (CACHEPLAN__MEMORY__BYTES=24GiB),\n\
         # that above this file, this file above the defaults. Sizes are bytes or texts such as \"24GiB\".\n",
    );
    text.extend(Budget::KEYS.iter().map(lines));
    for section in Budget::SECTIONS {
        text.push_str(&format!("\n# {}\n#[{}]\n", section.help, section.name));
        text.extend(section.keys.iter().map(lines));
    }
    text
}

/// The key with its help and default, `# ` before words and `#` before what could be uncommented.
fn lines(key: &BudgetKey) -> String {
    let default = if key.required { "Needed in this section.".into() } else { format!("Default: {}.", key.default) };
    format!("\n# {} {default}\n#{} = {}\n", key.help, key.name(), key.example.replace('\'', "\""))
}
