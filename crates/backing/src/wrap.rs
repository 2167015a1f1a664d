//! Backings that change one thing about another one (`inner`): all else is the inner one's.

/// The methods of `Backing` that a wrapper hands on as they are, all but those that touch I/O. It takes the
/// names of their types from where it stands.
macro_rules! forward_the_rest {
    () => {
        fn discard(&self, slots: &[SlotIndex]) {
            self.inner.discard(slots);
        }

        fn discard_cluster(&self, cluster: ClusterIndex) {
            self.inner.discard_cluster(cluster);
        }

        fn maintain(&self, queue: QueueId) -> bool {
            self.inner.maintain(queue)
        }

        fn give_ram(&self, queue: QueueId, bytes: u64) -> u64 {
            self.inner.give_ram(queue, bytes)
        }

        fn set_ram_limit_bytes(&self, limit_bytes: u64) {
            self.inner.set_ram_limit_bytes(limit_bytes);
        }

        fn keeps(&self, slot: SlotIndex) -> bool {
            self.inner.keeps(slot)
        }

        fn still_holds(&self, slot: SlotIndex, page: &Page) -> bool {
            self.inner.still_holds(slot, page)
        }

        fn end(&self) {
            self.inner.end();
        }

        fn close(&self) {
            self.inner.close();
        }

        fn usage(&self) -> Usage {
            self.inner.usage()
        }
    };
}

pub(crate) use forward_the_rest;
