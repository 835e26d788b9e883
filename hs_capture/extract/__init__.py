"""From prompts to a store on durable storage: ask a server, wait for the capture, move it."""
