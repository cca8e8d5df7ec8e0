// Package backendtest is the suite that every backend passes, and the batch it is
// driven with: Batch keeps tensors in plain memory, records what a backend answers,
// and notes every broken rule of backend.Batch. A backend's own tests may use Batch
// too. A Batch is for one goroutine, but for Cancel.
package backendtest
