package billing

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"jpintel/store"
)

// This file has the events sweep: what the payment provider has to tell and
// never arrived is fetched, and goes the way of what does arrive.

const (
	// eventsAgo is how far back the payment provider lists events.
	eventsAgo = 30 * 24 * time.Hour
	// eventsOverlap is how much of the last round is asked about again.
	eventsOverlap = time.Hour
	// longestSilence is how long a round may work without a write of its own.
	longestSilence = time.Minute
)

// eventLister lists the payment provider's events since a time, in any order,
// each as it would be sent. It ends with the first error of each's.
type eventLister interface {
	Events(ctx context.Context, since time.Time, each func(body []byte) error) error
}

// eventsDetail is the detail of missed and refused events.
type eventsDetail struct {
	Count    int       `json:"count"`
	Since    time.Time `json:"since"`
	EventIDs []string  `json:"event_ids"` // the first of them
}

func (d *eventsDetail) add(id string) {
	d.Count++
	if len(d.EventIDs) < maxListed {
		d.EventIDs = append(d.EventIDs, id)
	}
}

// events takes in what the payment provider lists. An event that is refused does
// not keep the others waiting; anything else that goes wrong ends the try.
func (r *round) events(ctx context.Context) error {
	since := r.started.Add(-eventsAgo)
	if from := r.doneUntil.Add(-eventsOverlap); from.After(since) {
		since = from
	}
	missed, refused := eventsDetail{Since: since, EventIDs: []string{}}, eventsDetail{Since: since, EventIDs: []string{}}
	err := r.Events.Events(ctx, since, func(body []byte) error {
		if err := r.keepClaim(ctx); err != nil {
			return err
		}
		r.checked++
		id := eventID(body)
		if known, err := r.Known(ctx, id); known || err != nil {
			return err
		}
		_, err := r.Ingest(ctx, body)
		switch {
		case store.CodeOf(err) == store.CodeInvalid:
			refused.add(id)
			return nil
		case err == nil:
			missed.add(id)
		}
		return err
	})
	if errors.Is(err, errSweepLost) {
		return err
	}
	written := r.write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		for kind, d := range map[FindingKind]eventsDetail{MissedEvents: missed, RefusedEvents: refused} {
			if err := r.listEvents(tx, kind, d, err == nil); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
		return r.done(tx, r.started)
	})
	return errors.Join(err, written)
}

// listEvents puts events on the operator's list, also those of a try that did
// not come to its end: the next one knows them. The list is over when a round
// without a failure has none.
func (r *round) listEvents(tx *store.Tx, kind FindingKind, d eventsDetail, complete bool) error {
	if d.Count > 0 {
		return observe(tx, kind, string(r.name), "", d)
	}
	if !complete || r.failures > 0 {
		return nil
	}
	return over(tx, kind, string(r.name))
}

// eventID is the id of an event as it was listed.
func eventID(body []byte) string {
	var event map[string]json.RawMessage
	var id string
	if json.Unmarshal(body, &event) != nil || json.Unmarshal(event["id"], &id) != nil {
		return "" // unreachable: the lister has seen it
	}
	return id
}

// keepClaim writes now and then, so that nobody else takes the sweep up.
func (r *round) keepClaim(ctx context.Context) error {
	if time.Since(r.wrote) < longestSilence {
		return nil
	}
	return r.write(ctx, func(*store.Tx) error { return nil })
}
