package drive

// Busy counts the instances that have a batch, also one that has freed them.
func (d *Driver) Busy() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	has := make([]bool, d.health.Count())
	for b := d.inflight.head; b != nil; b = b.next {
		has[b.instance] = true
	}
	n := 0
	for i := range has {
		if has[i] {
			n++
		}
	}
	return n
}
