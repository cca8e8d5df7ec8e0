// Package gateway is one gateway put together: New builds every part from a Config
// and joins them, Run serves until its context ends and then stops in order: not
// ready, a grace, no new connections, drain, schedulers, workers.
//
// cmd/sluice is its only caller outside tests.
package gateway
