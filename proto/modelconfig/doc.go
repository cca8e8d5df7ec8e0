// Package modelconfig holds the generated messages of the model configuration (config.pbtxt).
// The contract is the .proto file beside it; proto/generate.sh makes the rest.
package modelconfig
