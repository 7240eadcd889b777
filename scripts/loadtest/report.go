package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// figure is one result. Its key is what --json calls it.
type figure struct {
	key    string
	unit   string
	digits int
	value  float64
	what   string
}

type figures []figure

func (f *figures) add(key, unit string, digits int, value float64, what string) {
	*f = append(*f, figure{key, unit, digits, value, what})
}

const (
	millisecond = float64(time.Millisecond)
	microsecond = float64(time.Microsecond)
	mebibyte    = float64(1 << 20)
)

// figures are what a run came to.
func (b *bench) figures(limit bareFigures, phases []phase, w sizes) (all figures) {
	bareRate := float64(limit.Requests) / limit.Took.Seconds()
	bareCPU := float64(limit.CPU) / float64(limit.Requests) / microsecond
	all.add("bare_per_s", "/s", 0, bareRate, "bare loop of the same signed POSTs")
	all.add("bare_cpu_us", "µs", 1, bareCPU, "CPU of the bare loop for each")
	for _, p := range phases {
		prefix, words := "", ""
		if p.name != phasePlain {
			prefix, words = p.name+"_", p.name+": "
		}
		p.figures(&all, prefix, words)
		all.add(prefix+"delivered_vs_bare", "×", 2, over(p.rate(), bareRate), words+"delivered ÷ bare")
		all.add(prefix+"cpu_vs_bare", "×", 2, over(p.cpu(), bareCPU), words+"CPU of a delivery ÷ bare")
	}
	if len(phases) == 2 {
		plain, loaded := phases[0], phases[1]
		all.add("delivered_loaded_vs_plain", "×", 2, over(loaded.rate(), plain.rate()), "delivered, loaded ÷ plain")
		all.add("cpu_loaded_vs_plain", "×", 2, over(loaded.cpu(), plain.cpu()), "CPU of a delivery, loaded ÷ plain")
		if !b.drain {
			all.add("p95_loaded_vs_plain", "×", 2, over(loaded.arrived.Latency.P95, plain.arrived.Latency.P95), "p95 of those that answer, loaded ÷ plain")
		}
	}
	all.add("rss_idle_mib", "MiB", 1, float64(b.idle.rss)/mebibyte, "memory, idle on an empty file")
	all.add("disk_event_bytes", "B", 0, w.event, "on disk for an event")
	all.add("disk_delivery_bytes", "B", 0, w.delivery, "on disk for a delivery with its attempt")
	all.add("disk_entry_bytes", "B", 0, w.entry, "on disk for an event's program or Idempotency-Key")
	all.add("disk_file_mib", "MiB", 1, w.file/mebibyte, "the file at the end")
	return all
}

// over is a ÷ b; 0 where b is nothing: so short a time that the system has counted
// none of it.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// rate is deliveries a second.
func (p *phase) rate() float64 { return float64(p.deliveries) / p.took.Seconds() }

// cpu is the service's CPU time for a delivery, in microseconds.
func (p *phase) cpu() float64 { return float64(p.used.cpu) / float64(p.deliveries) / microsecond }

func (p *phase) figures(all *figures, prefix, words string) {
	add := func(key, unit string, digits int, value float64, what string) {
		all.add(prefix+key, unit, digits, value, words+what)
	}
	add("delivered_per_s", "/s", 0, p.rate(), "delivered")
	if count := len(p.publishing.acks); count > 0 {
		latency, ack := p.arrived.Latency, quantilesOf(p.publishing.acks)
		add("published_per_s", "/s", 0, float64(count)/p.publishing.took.Seconds(), "events acknowledged")
		add("latency_p50_ms", "ms", 2, latency.P50, "sent → arrived, p50")
		add("latency_p95_ms", "ms", 2, latency.P95, "sent → arrived, p95")
		add("latency_p99_ms", "ms", 2, latency.P99, "sent → arrived, p99")
		add("latency_max_ms", "ms", 2, latency.Max, "sent → arrived, the longest")
		add("write_p50_ms", "ms", 2, ack.P50, "sent → acknowledged, p50")
		add("write_p99_ms", "ms", 2, ack.P99, "sent → acknowledged, p99")
	}
	add("cpu_us", "µs", 1, p.cpu(), "CPU of the service for a delivery")
	add("rss_peak_mib", "MiB", 1, float64(p.used.peak)/mebibyte, "memory, the most")
	add("written_bytes", "B", 0, float64(p.used.written)/float64(p.deliveries), "written to the disk for a delivery, log included")
	add("body_bytes", "B", 0, float64(p.arrived.Bytes)/float64(p.arrived.Count), "a body")
	add("endpoints", "", 0, float64(p.arrived.Endpoints), "endpoints that were reached")
	add("repeated", "", 0, float64(p.arrived.Count-p.deliveries), "deliveries that arrived again")
	if p.arrived.Held > 0 {
		add("held", "", 0, float64(p.arrived.Held), "requests that wait for the dead ones at the end")
	}
}

// report gathers the runs.
type report struct {
	options options
	runs    []figures
}

func newReport(o options) *report { return &report{options: o} }

func (r *report) add(f figures) { r.runs = append(r.runs, f) }

// values are a figure's, of all runs that have it, sorted.
func (r *report) values(key string) (all []float64) {
	for _, run := range r.runs {
		for _, f := range run {
			if f.key == key {
				all = append(all, f.value)
			}
		}
	}
	slices.Sort(all)
	return all
}

func (r *report) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return r.writeJSON(w)
	}
	fmt.Fprintf(w, "%s; %s\n\n", r.options, machine())
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(r.runs) > 1 {
		fmt.Fprintln(table, "min\tmedian\tmax\t\t")
	}
	for _, f := range r.runs[0] {
		values := r.values(f.key)
		shown := values
		if len(r.runs) > 1 {
			shown = []float64{values[0], median(values), values[len(values)-1]}
		}
		for _, v := range shown {
			fmt.Fprintf(table, "%.*f\t", f.digits, v)
		}
		fmt.Fprintf(table, "%s\t  %s\n", f.unit, f.what)
	}
	return table.Flush()
}

// String says what was measured.
func (o options) String() string {
	load := fmt.Sprintf("%d events to %d of %d subscriptions each", o.events, o.fanout, o.subscriptions)
	switch {
	case o.drain:
		load += ", due at the start"
	case o.rate > 0:
		load += fmt.Sprintf(", %g a second", o.rate)
	default:
		load += fmt.Sprintf(", from %d clients", o.clients)
	}
	if o.history > 0 {
		load += fmt.Sprintf("; %d finished deliveries in the file", o.history)
	}
	if o.dead > 0 {
		load += fmt.Sprintf("; %d dead with %d due each", o.dead, o.pending)
	}
	return load
}

func machine() string {
	return fmt.Sprintf("%d CPUs, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// jsonFigure is a figure over all runs.
type jsonFigure struct {
	Unit    string    `json:"unit"`
	Meaning string    `json:"meaning"`
	Min     float64   `json:"min"`
	Median  float64   `json:"median"`
	Max     float64   `json:"max"`
	Values  []float64 `json:"values"` // sorted
}

func (r *report) writeJSON(w io.Writer) error {
	all := map[string]jsonFigure{}
	for _, f := range r.runs[0] {
		values := r.values(f.key)
		all[f.key] = jsonFigure{f.unit, f.what, values[0], median(values), values[len(values)-1], values}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(map[string]any{"load": r.options.String(), "machine": machine(), "runs": len(r.runs), "figures": all})
}
