// Package arch checks what STYLE leaves to no reviewer: who may import whom, package
// comments, no init functions, no sleeping, no context out of nowhere, sizes, gofmt, and
// that the gateway knows no backend by its name.
// The heights of the folders are read from the layout table of README.md. Check is a
// function of a file tree, so that its own test can plant a violation of every rule.
package arch
