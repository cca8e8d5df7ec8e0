// Package configfile reads the files of a configuration, and reads them again while the process runs. It holds the one
// rule by which a file that somebody edits, truncates or removes comes into force, for topologies, limits, identities,
// policies, keys and certificates alike.
//
// The rule: a change counts once all files of the configuration were found unchanged (device, inode, size, times and
// bytes) by two looks that lie at least a Period apart, so that a file that is being written in place is left alone. A
// file that is gone, empty or cut leaves the configuration in force as it is, and so does one that says nothing: a YAML
// document without content, or without something that the file in force has at its top. Who means to configure nothing
// writes that out (see Reading.YAML).
//
// A Follower has no goroutine and no clock: its owner calls Look with the time. It is not safe for concurrent use.
package configfile
