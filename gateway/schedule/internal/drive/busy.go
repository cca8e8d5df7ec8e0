package drive

// Busy counts the instances that have a batch.
func (d *Driver) Busy() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for i := range d.health.Count() {
		if d.health.Busy(i) {
			n++
		}
	}
	return n
}
