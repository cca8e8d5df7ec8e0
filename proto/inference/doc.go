// Package inference holds the generated messages of the v2 inference protocol, gRPC form.
// The contract is the .proto file beside it; proto/generate.sh makes the rest.
package inference
