//! Gate, word and in-use of paging by windows (`src/agent/pages/`) in a model: one page, threads that read
//! and write words of their own in it, discard it, use it in a call, or change its protection, and an evictor
//! that takes it out twice. Every order of their steps is gone through. In no order may a thread read what it
//! has not written, write where the program has forbidden it, be told of a fault that the program's own
//! protection does not explain (`fault.rs`), a call meet a page that is away or protected, or all wait for
//! each other.
//!
//! The kernel is in it as it is: a marker is put only where no page is, and a page of zeros comes wherever an
//! access is allowed and there is none. Without any one of the rules the model must find an order that fails,
//! or the rule would be idle. Orders of memory weaker than one step after the other are in `loom_in_use.rs`;
//! sleeping, and runs of pages, in `shuttle_agent.rs`.

use std::collections::HashSet;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The page has no protection while it is zapped and gets its marker.
    ZapUnderNone,
    /// It has none while it is filled.
    FillUnderNone,
    /// The evictor looks at who uses the page.
    InUse,
    /// ... after it has marked the word, and not before.
    MarkFirst,
    /// A call says that it uses the page before it looks at the word, and not after.
    PublishFirst,
    /// A change is made alone in the gate.
    Alone,
    /// A word has one owner who fills.
    OneOwner,
    /// After a window the page has the protection that its mapping had before.
    GiveBack,
    /// A fault of a page that is away is the program's only if the protection in its word explains it, and
    /// not whenever the kernel says that protection was in the way.
    AskTheWord,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Word {
    None,
    Evicting,
    Swapped,
    Filling,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Page {
    Nothing,
    Marker,
    Holds([u8; 2]),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Access {
    None,
    Read,
    Write,
}

/// What a thread does, one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Read,
    Write,
    Discard,
    Protect(Access),
    Publish,
    /// Brings the page, as a fault would.
    Bring,
    /// The kernel touches the page.
    Call,
    Withdraw,
}

/// Where a thread is in bringing the page, or in a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Deed,
    /// It has faulted. By protection?
    Fault(bool),
    Gate,
    Word,
    Wait(Word),
    Fill(u8),
    Change(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Thread {
    deed: u8,
    at: At,
    written: u8,
    /// The program has forbidden what it does, when it faulted or since.
    refused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    threads: [Thread; 2],
    evictor: u8,
    copy: [u8; 2],
    slot: [u8; 2],
    word: Word,
    page: Page,
    /// What the processor allows: inside of a window it is not the program's.
    access: Access,
    /// The program's protection; that in the word; what the evictor has found.
    theirs: Access,
    in_word: Access,
    found: Access,
    inside: u8,
    changing: bool,
    published: u8,
    failed: bool,
}

struct Model {
    deeds: [&'static [Deed]; 2],
    left_out: Option<Rule>,
}

impl Model {
    fn holds(&self, rule: Rule) -> bool {
        self.left_out != Some(rule)
    }

    fn thread(&self, state: &State, who: usize) -> Option<State> {
        let mut next = *state;
        let thread = state.threads[who];
        let deed = self.deeds[who].get(usize::from(thread.deed)).copied()?;
        let mut go = |at| next.threads[who].at = at;
        match thread.at {
            At::Deed => return Some(self.deed(state, who, deed)),
            At::Fault(by_protection) => {
                let is_explained = state.in_word < needed_by(deed) || !self.holds(Rule::AskTheWord);
                if by_protection && state.word == Word::Swapped && is_explained {
                    return Some(tell(state, who));
                }
                go(At::Gate);
            }
            At::Gate if state.changing && self.holds(Rule::Alone) => return None,
            At::Gate => {
                go(At::Word);
                next.inside += 1;
            }
            At::Word => match state.word {
                Word::Swapped => {
                    go(At::Fill(0));
                    next.word = Word::Filling;
                }
                Word::Filling if !self.holds(Rule::OneOwner) => go(At::Fill(0)),
                // The kernel is asked whether the access fails.
                Word::None if deed != Deed::Bring && state.access < needed_by(deed) => {
                    next = tell(state, who);
                    next.inside -= 1;
                }
                Word::None => {
                    next.inside -= 1;
                    next.threads[who].at = At::Deed;
                    next.threads[who].deed += u8::from(deed == Deed::Bring);
                }
                word => {
                    go(At::Wait(word));
                    next.inside -= 1;
                }
            },
            At::Wait(word) if state.word == word => return None,
            At::Wait(_) => go(At::Gate),
            At::Fill(step) => {
                go(At::Fill(step + 1));
                match step {
                    0 if self.holds(Rule::FillUnderNone) => next.access = Access::None,
                    1 => next.page = Page::Nothing,
                    2 => next.page = Page::Holds(state.slot),
                    3 if self.holds(Rule::GiveBack) => next.access = state.in_word,
                    3 => next.access = Access::Write,
                    4 => {
                        next.word = Word::None;
                        next.inside -= 1;
                        next.threads[who].at = At::Deed;
                    }
                    _ => {}
                }
            }
            At::Change(step) => match deed {
                Deed::Protect(access) => return self.protect(state, who, step, access),
                _ => return self.change(state, who, step),
            },
        }
        Some(next)
    }

    fn change(&self, state: &State, who: usize, step: u8) -> Option<State> {
        let mut next = *state;
        next.threads[who].at = At::Change(step + 1);
        match step {
            // Who is alone.
            0 if state.inside != 0 && self.holds(Rule::Alone) => return None,
            1 if state.page != Page::Marker => next.page = Page::Nothing,
            2 if state.word == Word::Swapped => {
                next.page = Page::Nothing;
                next.word = Word::None;
            }
            3 => {
                next.changing = false;
                let deed = state.threads[who].deed + 1;
                next.threads[who] = Thread { deed, at: At::Deed, written: 0, refused: false };
            }
            _ => {}
        }
        Some(next)
    }

    /// Another protection: as `change` in the gate.
    fn protect(&self, state: &State, who: usize, step: u8, access: Access) -> Option<State> {
        let mut next = *state;
        next.threads[who].at = At::Change(step + 1);
        match step {
            0 if state.inside != 0 && self.holds(Rule::Alone) => return None,
            1 => {
                (next.theirs, next.access) = (access, access);
                for (thread, deeds) in next.threads.iter_mut().zip(self.deeds) {
                    let deed = deeds.get(usize::from(thread.deed)).copied();
                    thread.refused |= deed.is_some_and(|deed| access < needed_by(deed));
                }
            }
            2 if state.word == Word::Swapped => next.in_word = access,
            3 => {
                next.changing = false;
                next.threads[who].at = At::Deed;
                next.threads[who].deed += 1;
            }
            _ => {}
        }
        Some(next)
    }

    fn deed(&self, state: &State, who: usize, deed: Deed) -> State {
        let mut next = *state;
        let needed = needed_by(deed);
        let can = state.access >= needed && state.page != Page::Marker;
        match deed {
            Deed::Bring => {
                next.threads[who].at = At::Gate;
                return next;
            }
            Deed::Discard | Deed::Protect(_) => {
                next.changing = true;
                next.threads[who].at = At::Change(0);
                return next;
            }
            Deed::Publish => next.published += 1,
            Deed::Withdraw => next.published -= 1,
            Deed::Call => next.failed |= !can,
            Deed::Read | Deed::Write if !can => {
                next.threads[who].at = At::Fault(state.access < needed);
                next.threads[who].refused = state.theirs < needed;
                return next;
            }
            // A right that the program has not given.
            Deed::Read | Deed::Write => next.failed |= state.theirs < needed,
        }
        if let Deed::Read | Deed::Write | Deed::Call = deed
            && can
        {
            let mut holds = if let Page::Holds(holds) = state.page { holds } else { [0; 2] };
            if deed == Deed::Read {
                next.failed |= holds[who] != state.threads[who].written;
            } else if deed == Deed::Write {
                next.threads[who].written += 1;
                holds[who] = next.threads[who].written;
            }
            next.page = Page::Holds(holds);
        }
        next.threads[who].deed += 1;
        next
    }

    /// The evictor's steps: 11 for each time that it takes the page out.
    fn evictor(&self, state: &State) -> Option<State> {
        const STEPS: u8 = 11;
        let mut next = *state;
        if state.evictor == 2 * STEPS {
            return None;
        }
        let (round, mut step) = (state.evictor / STEPS, state.evictor % STEPS);
        // Looks, then marks.
        if !self.holds(Rule::MarkFirst) && (step == 1 || step == 2) {
            step = 3 - step;
        }
        let end = (round + 1) * STEPS;
        next.evictor += 1;
        match step {
            0 if state.changing && self.holds(Rule::Alone) => return None,
            0 => next.inside += 1,
            1 if state.word == Word::None => {
                next.word = Word::Evicting;
                next.found = state.theirs;
            }
            1 => {
                next.inside -= 1;
                next.evictor = end;
            }
            2 if state.published != 0 && self.holds(Rule::InUse) => {
                if state.word == Word::Evicting {
                    next.word = Word::None;
                }
                next.inside -= 1;
                next.evictor = end;
            }
            3 => next.access = Access::Read,
            4 => next.copy = if let Page::Holds(holds) = state.page { holds } else { [0; 2] },
            5 if self.holds(Rule::ZapUnderNone) => next.access = Access::None,
            6 => next.page = Page::Nothing,
            7 if state.page == Page::Nothing => next.page = Page::Marker,
            // A page has come meanwhile: once more.
            7 => next.evictor -= 2,
            8 if self.holds(Rule::GiveBack) => next.access = state.found,
            8 => next.access = Access::Write,
            9 => {
                next.slot = state.copy;
                next.in_word = state.found;
                next.word = Word::Swapped;
            }
            10 => next.inside -= 1,
            _ => {}
        }
        Some(next)
    }

    /// Goes through all orders: whether one fails, and how many states there are.
    fn fails(&self) -> (bool, usize) {
        let thread = Thread { deed: 0, at: At::Deed, written: 0, refused: false };
        let first = State {
            threads: [thread; 2],
            evictor: 0,
            copy: [0; 2],
            slot: [0; 2],
            word: Word::None,
            page: Page::Nothing,
            access: Access::Write,
            theirs: Access::Write,
            in_word: Access::Write,
            found: Access::Write,
            inside: 0,
            changing: false,
            published: 0,
            failed: false,
        };
        let (mut met, mut open) = (HashSet::new(), vec![first]);
        while let Some(state) = open.pop() {
            if state.failed {
                return (true, met.len());
            }
            if !met.insert(state) {
                continue;
            }
            let threads = (0..2).filter_map(|who| self.thread(&state, who));
            let next: Vec<State> = threads.chain(self.evictor(&state)).collect();
            let is_over = (0..2).all(|who| usize::from(state.threads[who].deed) == self.deeds[who].len());
            assert!(!next.is_empty() || is_over, "all wait");
            open.extend(next);
        }
        (false, met.len())
    }
}

fn needed_by(deed: Deed) -> Access {
    if deed == Deed::Read { Access::Read } else { Access::Write }
}

/// The fault is the program's own: its handler has it, and the access is given up.
fn tell(state: &State, who: usize) -> State {
    let mut next = *state;
    next.failed |= !state.threads[who].refused;
    next.threads[who].at = At::Deed;
    next.threads[who].deed += 1;
    next
}

const COUNTING: &[Deed] = &[Deed::Read, Deed::Write, Deed::Read, Deed::Write, Deed::Read];
const DISCARDING: &[Deed] = &[Deed::Read, Deed::Write, Deed::Discard, Deed::Read, Deed::Write, Deed::Read];
const PROTECTING: &[Deed] = &[
    Deed::Write,
    Deed::Protect(Access::Read),
    Deed::Write,
    Deed::Read,
    Deed::Protect(Access::Write),
    Deed::Write,
    Deed::Read,
];
const CALLING: &[Deed] = &[Deed::Publish, Deed::Bring, Deed::Call, Deed::Call, Deed::Withdraw];
const CALLING_LATE: &[Deed] = &[Deed::Bring, Deed::Publish, Deed::Call, Deed::Call, Deed::Withdraw];

fn scenes(left_out: Option<Rule>) -> Vec<Model> {
    let calling = if left_out == Some(Rule::PublishFirst) { CALLING_LATE } else { CALLING };
    let protecting = [PROTECTING, COUNTING];
    [[COUNTING, COUNTING], [COUNTING, calling], [DISCARDING, calling], [calling, calling], protecting]
        .map(|deeds| Model { deeds, left_out })
        .into()
}

#[test]
fn nothing_is_lost_in_any_order() {
    for scene in scenes(None) {
        let (failed, states) = scene.fails();
        assert!(!failed);
        assert!(states > 1000, "{states}");
    }
}

#[test]
fn no_rule_is_idle() {
    for rule in [
        Rule::ZapUnderNone,
        Rule::FillUnderNone,
        Rule::InUse,
        Rule::MarkFirst,
        Rule::PublishFirst,
        Rule::Alone,
        Rule::OneOwner,
        Rule::GiveBack,
        Rule::AskTheWord,
    ] {
        assert!(scenes(Some(rule)).iter().any(|scene| scene.fails().0));
    }
}
