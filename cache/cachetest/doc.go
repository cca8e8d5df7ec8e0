// Package cachetest is the suite that every level of the response cache passes.
package cachetest
