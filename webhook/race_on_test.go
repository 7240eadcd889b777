//go:build race

package webhook

// raceEnabled: the tests run under the race detector and take smaller steps.
const raceEnabled = true
