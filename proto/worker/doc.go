// Package worker holds the generated messages of the protocol between gateway and worker.
// The contract is the .proto file beside it; proto/generate.sh makes the rest.
package worker
