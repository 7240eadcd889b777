package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// percentile returns the smallest value that is not below the share p of all.
func percentile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// median is the middle of sorted values.
func median(sorted []float64) float64 {
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// quantiles are the percentiles of latencies, in milliseconds.
type quantiles struct {
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func quantilesOf(latencies []time.Duration) quantiles {
	slices.Sort(latencies)
	at := func(p float64) float64 { return float64(percentile(latencies, p)) / float64(time.Millisecond) }
	return quantiles{at(0.5), at(0.95), at(0.99), at(1)}
}

// tick is the unit of CPU time in /proc: Linux has 100 of them a second on
// every platform that Go knows.
const tick = 10 * time.Millisecond

// process is what the kernel counts for a process.
type process struct {
	cpu     time.Duration // user and system
	rss     int64         // bytes, now
	peak    int64         // bytes, the most so far
	written int64         // bytes that were sent to the disk
}

func readProcess(pid int) (p process, err error) {
	var errs [3]error
	p.cpu, errs[0] = readCPU(pid)
	p.rss, p.peak, errs[1] = readMemory(pid)
	p.written, errs[2] = readWritten(pid)
	return p, errors.Join(errs[:]...)
}

func readCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in brackets, with any bytes in it.
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %d fields after the name", pid, len(fields))
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}

func readMemory(pid int) (rss, peak int64, err error) {
	fields, err := procFields(fmt.Sprintf("/proc/%d/status", pid))
	return fields["VmRSS"] << 10, fields["VmHWM"] << 10, err
}

func readWritten(pid int) (int64, error) {
	fields, err := procFields(fmt.Sprintf("/proc/%d/io", pid))
	return fields["write_bytes"], err
}

// procFields reads lines like "VmRSS: 123 kB"; what is not a number is left out.
func procFields(path string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if words := strings.Fields(value); len(words) > 0 {
			if n, err := strconv.ParseInt(words[0], 10, 64); err == nil {
				fields[name] = n
			}
		}
	}
	return fields, nil
}

// inMemory reports whether a folder is on a tmpfs.
func inMemory(path string) bool {
	const tmpfs = 0x01021994
	var s syscall.Statfs_t
	return syscall.Statfs(path, &s) == nil && int64(s.Type) == tmpfs
}
