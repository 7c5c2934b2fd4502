"""Small applications for workers that run as processes of their own."""
