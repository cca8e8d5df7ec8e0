package loop

// coresEach is how many cores there are for each loop, which keeps one of them busy at most.
const coresEach = 4

// Count is how many loops serve a process where so many processors run goroutines. With one
// there should be none: a loop's wait in the kernel keeps it until Go's monitor takes it
// back, which is a millisecond and more for each request.
func Count(processors int) int {
	if processors == 1 {
		return 0
	}
	return max(1, processors/coresEach)
}
