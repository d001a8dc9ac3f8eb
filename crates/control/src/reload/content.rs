//! The content half of a reload: what replaces what, what of it drains, and what is made or looked at between reloads.

use super::{DRAIN_LOOK, Loader, PATIENCE, TOUCHED_LOOK, Wishes};
use crate::config::{HostSpec, Web};
use crate::sites::{self, Before, Memo, Served, Touched, Tree, Variants};
use base::publish::Publisher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use web::Site;

/// The content that is served, and from which files.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) web: Web,
    pub(crate) tree: Tree,
    pub(crate) publisher: Arc<Publisher<Site>>,
    /// what compressing it has shown
    pub(crate) memo: Memo,
    pub(crate) touched: Touched,
}

/// Content, with settings that name other hosts than before if they do.
pub(super) struct ContentRead {
    pub(super) web: Option<Web>,
    pub(super) loaded: sites::Loaded,
}

/// Content that was replaced and that answers under way may still hold.
#[derive(Debug)]
pub(super) struct Draining {
    site: Arc<Site>,
    until: Instant,
}

impl Loader {
    /// How long until variants are to be made, if any are.
    pub(super) fn pass_due_in(&self) -> Option<Duration> {
        // that replaces the content, and there are never more than two versions
        (self.draining.is_none() && self.lacks_variants).then(|| self.passes.due_in(Instant::now()))
    }

    /// How long to wait for a wish before anything else is looked at.
    pub(super) fn look_due_in(&self) -> Option<Duration> {
        let reads = |content: &Content| content.publisher.current().read_when_sent().0 > 0;
        let touched = self.content.as_ref().is_some_and(reads).then_some(TOUCHED_LOOK);
        self.pass_due_in().into_iter().chain(touched).min()
    }

    /// Serves files on that were touched while they are read and sent: until then who asks for one is reset.
    pub(super) fn take_touched(&mut self) {
        // there are never more than two versions
        let Some(content) = self.content.as_ref().filter(|_| self.draining.is_none()) else { return };
        if !content.touched.take() {
            return;
        }
        // as in a reload
        let outcome = catch_unwind(AssertUnwindSafe(|| content.take_touched())).unwrap_or_else(|_| {
            Err(vec!["looking at touched files failed by a bug in simoom: please report it".into()])
        });
        match outcome {
            Ok(Some(loaded)) => self.replace_content(loaded, None),
            Ok(None) => {}
            Err(errors) => errors.iter().for_each(|error| tracing::error!("{error}")),
        }
    }

    /// What is served from then on has variants, unless a reload is wanted before they are made.
    pub(super) fn compress(&mut self, wishes: &mut Wishes) {
        let Some(content) = &mut self.content else { return };
        let mut is_broken_off = false;
        let mut keep_on = || {
            is_broken_off = wishes.are_any();
            !is_broken_off
        };
        let begun = Instant::now();
        // as in a reload
        let outcome = catch_unwind(AssertUnwindSafe(|| content.compress(&mut keep_on)))
            .unwrap_or_else(|_| Err(vec!["compressing failed by a bug in simoom: please report it".into()]));
        self.passes.on_end(Instant::now(), begun.elapsed());
        // what failed is tried again with what the next reload brings
        self.lacks_variants = is_broken_off;
        match outcome {
            Ok(Some(loaded)) => {
                tracing::info!("compressed: {}", sites::describe(&loaded.site));
                self.replace_content(loaded, None);
            }
            Ok(None) => {}
            Err(errors) => {
                errors.iter().for_each(|error| tracing::error!("{error}"));
                tracing::error!("not compressed, the content goes on as it was read");
            }
        }
    }

    /// Until the content that was replaced last is nobody's: never are there more than two.
    pub(super) fn wait_for_drain(&mut self) {
        while self.draining.is_some() {
            self.look_at_drain();
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    /// Other hosts than before, if there are.
    pub(super) fn take_hosts(&mut self, web: Option<Web>) {
        let (Some(web), Some(content)) = (web, &mut self.content) else { return };
        if let Some(log) = &self.access_log {
            log.set_hosts(&web.hosts);
        }
        if let Some(watch) = &self.watch {
            watch.set(&web.hosts);
        }
        content.web = web;
    }

    /// `web` are the settings, where they are others.
    pub(super) fn replace_content(&mut self, loaded: sites::Loaded, web: Option<Web>) {
        let Some(content) = &mut self.content else { return };
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let drain = Duration::from_secs(content.web.drain_s.into());
        let old = content.publisher.current();
        content.publisher.publish(Arc::new(loaded.site));
        (content.tree, content.touched) = (loaded.tree, loaded.touched);
        content.memo.on_published();
        old.content().retire();
        self.take_hosts(web);
        self.wait_until_released(&old);
        self.draining = Some(Draining { site: old, until: Instant::now() + drain });
        self.look_at_drain();
    }

    /// Lets the old content go when nobody holds it any more; tells the serving threads when its time is over.
    pub(super) fn look_at_drain(&mut self) {
        let Some(Draining { site, until }) = &self.draining else { return };
        if Arc::strong_count(site.content()) == 1 {
            self.draining = None;
            base::heap::give_back();
            return;
        }
        let now = Instant::now();
        if now >= *until
            && let Some(content) = &self.content
        {
            site.content().expire_for(content.publisher.current().content());
        }
        if now >= *until + PATIENCE {
            tracing::warn!("a thread still holds content that was replaced {} s ago", PATIENCE.as_secs());
            self.draining = None;
            return;
        }
        // who sleeps looks at what it holds when it wakes
        self.running.wake();
    }
}

impl Content {
    /// Reads the content that has changed, unless nothing has. `said` are the hosts and the Server field that the configuration file names
    /// by now.
    pub(super) fn read(
        &self,
        said: Option<(Vec<HostSpec>, Option<String>)>,
    ) -> Result<Option<ContentRead>, Vec<String>> {
        let web = said.and_then(|(hosts, server)| self.other(hosts, server));
        let before = Before { site: &self.publisher.current(), tree: &self.tree, rules: web.is_none() };
        let loaded = sites::load(web.as_ref().unwrap_or(&self.web), Some(before), Variants::Kept(&self.memo))?;
        Ok(loaded.map(|loaded| ContentRead { web, loaded }))
    }

    /// The settings with these hosts, if they are others.
    fn other(&self, hosts: Vec<HostSpec>, server: Option<String>) -> Option<Web> {
        let Web { hosts: was, server: had, .. } = &self.web;
        let same = hosts.len() == was.len() && hosts.iter().zip(was).all(|(now, was)| now.is_as(was));
        (!same || server != *had).then(|| Web { hosts, server, ..self.web.clone() })
    }

    /// Makes the variants that the start, or the reload, left out.
    fn compress(&mut self, keep_on: &mut dyn FnMut() -> bool) -> Result<Option<sites::Loaded>, Vec<String>> {
        let served = Served { site: &self.publisher.current(), tree: &self.tree, touched: &self.touched };
        sites::with_variants(&self.web, served, &mut self.memo, keep_on)
    }

    /// Takes files as they are now of which nothing but the time of change is another.
    fn take_touched(&self) -> Result<Option<sites::Loaded>, Vec<String>> {
        let served = Served { site: &self.publisher.current(), tree: &self.tree, touched: &self.touched };
        sites::with_touched(&self.web, served, &self.memo)
    }
}
