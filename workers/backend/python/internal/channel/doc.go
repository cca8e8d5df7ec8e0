// Package channel is what a worker and a Python process say to each other, and the memory
// that they share for it: four rings of frames over eventfds, flags of cancelled requests,
// and the exchange memory, which the worker alone allocates from. The table of frames is
// docs/0025-python-channel.md; testdata has frames that this codec and the runner's are
// tested by.
//
// The process is trusted with its model's data and no more: whatever is read here is
// copied before it is looked at and checked against its bounds, and what the worker relies
// on lies in its own memory.
//
// A Writer may be used by any goroutine, a Reader by one at a time, an Exchange by any.
// Nothing here starts a goroutine, and no lock is held while another is taken.
package channel
