"""Who asks: arrivals, requests, clients and the loop that sends each at its time, in a replica, beside the harness or in a pod."""
